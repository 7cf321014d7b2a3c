import json

import numpy as np
import pytest

from train.answers import AnswerSource, AnswerWriter, Record
from train.folders import Folders


def write(folder, records, **facts):
    with AnswerWriter(folder, vocab_size=97, facts={"target": "tiny"} | facts) as writer:
        for record in records:
            writer.add(record)
    return writer


def test_records_come_back_padded_with_the_mask_of_their_answer(tmp_path):
    write(tmp_path, [Record(0, [1, 2, 3, 4], 2, "maths", 0.8, True), Record(1, [9, 8, 7], 1, "code", 0.0, False)])
    source = AnswerSource(tmp_path, max_len=6)
    first = source[0]
    assert first["tokens"].tolist() == [1, 2, 3, 4, 0, 0]
    assert first["answer_mask"].tolist() == [False, False, True, True, False, False]
    assert (first["length"], first["id"]) == (4, 0)
    assert source.token_ids(1).tolist() == [9, 8, 7]
    assert source.sources.tolist() == ["maths", "code"]
    assert source.is_complete.tolist() == [True, False]
    assert json.loads((tmp_path / "answers.json").read_text()) == {
        "facts": {"target": "tiny"},
        "is_finished": True,
        "num_records": 2,
    }


def test_longer_records_lose_their_end_and_chosen_ones_keep_their_number(tmp_path):
    write(tmp_path, [Record(i, list(range(10)), 3, "a", 0.0, True) for i in range(3)])
    source = AnswerSource(tmp_path, max_len=5).only([2])
    assert len(source) == 1
    assert source[0]["id"] == 2
    assert source[0]["tokens"].tolist() == [0, 1, 2, 3, 4]
    assert source[0]["answer_mask"].tolist() == [False, False, False, True, True]


def test_parts_are_joined_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("train.answers.PART_RECORDS", 2)
    write(tmp_path, [Record(i, [i, i + 1], 1, f"s{i % 2}", 0.0, True) for i in range(5)])
    assert len(list(tmp_path.glob("part-*.npz"))) == 3
    source = AnswerSource(tmp_path, max_len=2)
    assert np.stack([source[i]["tokens"] for i in range(5)]).tolist() == [[i, i + 1] for i in range(5)]
    assert source.sources.tolist() == ["s0", "s1", "s0", "s1", "s0"]


def test_goes_on_after_the_answers_that_are_there(tmp_path):
    write(tmp_path, [Record(i, [i, i + 1], 1, "a", 0.0, True) for i in (0, 2)])
    writer = AnswerWriter(tmp_path, vocab_size=97, facts={"target": "tiny"})
    assert writer.done == {0, 2}
    with writer:
        writer.add(Record(1, [1, 2], 1, "b", 0.0, True))
    source = AnswerSource(tmp_path, max_len=2)
    assert [source[i]["tokens"].tolist() for i in range(3)] == [[0, 1], [2, 3], [1, 2]]
    assert json.loads((tmp_path / "answers.json").read_text())["num_records"] == 3


def test_a_run_that_fails_leaves_whole_parts_and_is_not_finished(tmp_path):
    def failing():
        with AnswerWriter(tmp_path, vocab_size=97, facts={"target": "tiny"}) as writer:
            writer.add(Record(0, [1, 2], 1, "a", 0.0, True))
            raise KeyError("stopped")

    with pytest.raises(KeyError):
        failing()
    assert len(AnswerSource(tmp_path, max_len=2)) == 1
    assert not json.loads((tmp_path / "answers.json").read_text())["is_finished"]


def test_answers_must_be_finished_before_they_train(tmp_path):
    with pytest.raises(ValueError, match="no finished answers"):
        Folders(tmp_path).answer_facts("tiny")


def test_another_target_is_refused(tmp_path):
    write(tmp_path / "answers", [Record(0, [1, 2], 1, "a", 0.0, True)])
    assert Folders(tmp_path).answer_facts("tiny") == {"target": "tiny", "num_records": 1}
    with pytest.raises(ValueError, match="answers of 'tiny', the target is 'other'"):
        Folders(tmp_path).answer_facts("other")


def test_refuses_to_mix_with_answers_made_otherwise(tmp_path):
    write(tmp_path, [Record(0, [1, 2], 1, "a", 0.0, True)], seed=1)
    with pytest.raises(ValueError, match=r"made otherwise \(seed\)"):
        write(tmp_path, [], seed=2)


def test_says_what_to_do_without_answers(tmp_path):
    with pytest.raises(ValueError, match="train data"):
        AnswerSource(tmp_path, 8)
