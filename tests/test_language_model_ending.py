"""Where text ends, however many tokens a round commits: end ids, stop strings, limits, minimum length, NaN."""

from collections.abc import Sequence

import numpy as np
import pytest

from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ByteTokenizer, ScriptedDrafter, TableTarget, counting_target

VOCAB_SIZE = 97


class PieceTokenizer(ByteTokenizer):
    """Tokens of several characters; ids without a piece (padded vocabulary) give no text."""

    def __init__(self, pieces: dict[int, str]):
        super().__init__()
        self.pieces, self.vocab_size, self.eos_token_ids = pieces, max(pieces) + 1, ()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [{piece: token for token, piece in self.pieces.items()}[text]]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(self.pieces.get(token, "") for token in ids)


def scripted(model: LanguageModel, num_drafts: int, script: list[int] | None = None) -> LanguageModel:
    """Drafts of the counting text 0, 1, 2, ..; by default all of them right."""
    script = [num_drafts] if script is None else script
    drafter = ScriptedDrafter([range(VOCAB_SIZE)], script, num_drafts=num_drafts, vocab_size=VOCAB_SIZE)
    return model.with_drafter(drafter)


# Token t is the letter of t + 97: "b", "c", .. follow the prompt [0].
LETTERS = PieceTokenizer({i: chr(97 + i) if i < 26 else f"<{i}>" for i in range(VOCAB_SIZE)})
NUM_DRAFTS = 4


@pytest.fixture(scope="module")
def counting() -> LanguageModel:
    return LanguageModel(counting_target(VOCAB_SIZE), LETTERS, drafter=None)


@pytest.fixture(scope="module")
def blocks(counting) -> LanguageModel:
    """Commits 1 (prefill), then 2..6, 7..11, 12..16, .."""
    return scripted(counting, NUM_DRAFTS)


def check(output, ids: list[int], text: str, reason: str, stop_reason) -> None:
    """Ids, text, usage, logprobs and stats all tell the same."""
    assert output.token_ids == ids
    assert (output.text, output.finish_reason, output.stop_reason) == (text, reason, stop_reason)
    assert output.usage.completion_tokens == len(ids)
    assert len(output.logprobs) == len(ids)
    assert sum(output.stats.committed) == len(ids) - 1


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(1, id="C09-prefill"),
        pytest.param(2, id="C09-first-accepted"),
        pytest.param(4, id="C09-middle"),
        pytest.param(5, id="C09-last-accepted"),
        pytest.param(6, id="C09-bonus"),
        pytest.param(7, id="C09-first-of-next-block"),
    ],
)
def test_end_id_anywhere_in_a_block(blocks, end):
    output = blocks.generate([0], max_new_tokens=40, stop_token_ids=[end], logprobs=0)
    check(output, list(range(1, end + 1)), "bcdefgh"[: end - 1], "stop", end)
    assert output.stats.rounds == {1: 0, 7: 2}.get(end, 1)  # nothing is drafted after the end


def test_any_of_the_models_end_ids(counting):
    """C09: two ids; the one that comes first ends the text, `ignore_eos` goes past both."""
    model = scripted(LanguageModel(counting_target(VOCAB_SIZE, eos_token_ids=(9, 5)), LETTERS), NUM_DRAFTS)
    check(model.generate([0], max_new_tokens=12, logprobs=0), [1, 2, 3, 4, 5], "bcde", "stop", 5)
    check(model.generate([6], max_new_tokens=12, logprobs=0), [7, 8, 9], "hi", "stop", 9)
    ignored = model.generate([0], max_new_tokens=12, logprobs=0, ignore_eos=True)
    check(ignored, list(range(1, 13)), "bcdefghijklm", "length", None)
    both = model.generate([0], max_new_tokens=12, logprobs=0, ignore_eos=True, stop_token_ids=[3, 11])
    check(both, [1, 2, 3], "bc", "stop", 3)


@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize(
    ("num_drafts", "prompt", "stop", "ids", "text", "match"),
    [
        # Pieces of the block after the first token: "1", then "2", "xa", "by", "5", ...
        pytest.param(15, 0, "ab", [1, 2, 3, 4], "12x", "ab", id="C10-early-in-a-long-block"),
        pytest.param(2, 0, "y5", [1, 2, 3, 4, 5], "12xab", "y5", id="C10-across-two-blocks"),
        pytest.param(15, 0, ["56", "by5"], [1, 2, 3, 4, 5], "12xa", "by5", id="C10-two-in-one-block-first-wins"),
        pytest.param(15, 0, ["1", "12"], [1], "", "1", id="C10-in-the-first-token"),
        pytest.param(15, 0, "xabyz", list(range(1, 21)), None, None, id="C10-almost"),
    ],
)
def test_stop_string(num_drafts, prompt, stop, ids, text, match, include_stop):
    pieces = {i: str(i % 10) for i in range(VOCAB_SIZE)} | {3: "xa", 4: "by"}
    model = scripted(LanguageModel(counting_target(VOCAB_SIZE), PieceTokenizer(pieces), drafter=None), num_drafts)
    chunks = list(model.stream([prompt], max_new_tokens=20, stop=stop, include_stop=include_stop, logprobs=0))
    output = chunks[-1].output
    if match is None:
        text = "".join(pieces[token] for token in ids)
        check(output, ids, text, "length", None)
    else:
        check(output, ids, text + match if include_stop else text, "stop", match)
    assert "".join(chunk.text for chunk in chunks) == output.text
    assert [token for chunk in chunks for token in chunk.token_ids] == ids


def test_exactly_the_wanted_number_of_tokens(counting):
    """C11: whole blocks of 16, every limit from 1 to 40."""
    model = scripted(counting, 15)
    for limit in range(1, 41):
        output = model.generate([0], max_new_tokens=limit, logprobs=0)
        ids = list(range(1, limit + 1))
        check(output, ids, LETTERS.decode(ids), "length", None)
        assert output.stats.rounds == -(-(limit - 1) // 16)


@pytest.fixture(scope="module")
def eager_to_end() -> LanguageModel:
    """Counts 1, 2, 3 from the prompt [0]; from then on it would rather end (id 96), else it counts on."""
    logits = 9.0 * np.roll(np.eye(VOCAB_SIZE), 1, axis=1)
    logits[3:, 96] += 20.0
    return LanguageModel(TableTarget(logits, eos_token_ids=(96,)), drafter=None)


@pytest.mark.parametrize("num_drafts", [0, 1, 4, 15])
def test_minimum_length_counts_tokens_not_rounds(eager_to_end, num_drafts):
    """C12: eight tokens, then the end, however many a round commits."""
    model = scripted(eager_to_end, num_drafts) if num_drafts else eager_to_end
    assert model.generate([0], max_new_tokens=30, min_new_tokens=8).token_ids == [1, 2, 3, 4, 5, 6, 7, 8, 96]
    assert model.generate([0], max_new_tokens=30, min_new_tokens=1).token_ids == [1, 2, 3, 96]


@pytest.mark.parametrize("num_drafts", [15])
def test_frequency_penalty_on_a_loop_counts_tokens_not_rounds(num_drafts):
    """C12: the loop 0, 1, 2 wears out as its tokens are counted; penalised drafts equal penalised plain text."""
    logits = np.full((8, 8), 0.0)
    for token in range(8):
        logits[token, (token + 1) % 3] = 3.0
        logits[token, (token + 3) % 8] = 1.3
    plain = LanguageModel(TableTarget(logits), drafter=None)
    options = {"max_new_tokens": 40, "frequency_penalty": 0.5}
    text = plain.generate([0], **options).token_ids
    assert text[:9] == [1, 2, 0] * 3
    assert len(set(text)) == 8
    for script in ([num_drafts], [0], [num_drafts, 0, 1]):
        drafter = ScriptedDrafter([[0, *text]], script, num_drafts=num_drafts, vocab_size=8)
        output = plain.with_drafter(drafter).generate([0], **options)
        assert output.token_ids == text
        assert sum(output.stats.accepted_at) > 0 or script == [0]


@pytest.mark.parametrize(("num_drafts", "temperature"), [(0, 0.0), (4, 0.0), (4, 1.0)])
def test_nan_ends_one_row_with_an_error_and_not_the_others(num_drafts, temperature):
    """C08: what follows token 19 is NaN, so the first row fails at position 20; the second never gets there."""
    logits = 40.0 * np.roll(np.eye(VOCAB_SIZE), 1, axis=1)  # sharp enough to count at temperature 1 as well
    logits[19] = np.nan
    model = LanguageModel(TableTarget(logits), LETTERS, drafter=None)
    model = scripted(model, num_drafts) if num_drafts else model
    bad, good = model.generate([[0], [40]], max_new_tokens=30, temperature=temperature, seed=1, logprobs=0)
    check(bad, list(range(1, 20)), "bcdefghijklmnopqrst", "error", None)
    assert bad.error == "logits for position 20 are not finite, from the target or after filters"
    assert good.token_ids == list(range(41, 71))
    assert (good.finish_reason, good.error) == ("length", None)


@pytest.mark.parametrize("num_drafts", [0, 4])
def test_nan_at_a_position(num_drafts):
    """C08: the same with a target that fails at an absolute position, prefill included."""
    for nan_at, delivered in ((1, 0), (20, 19)):
        model = LanguageModel(counting_target(VOCAB_SIZE, nan_at=nan_at), drafter=None)
        model = scripted(model, num_drafts) if num_drafts else model
        output = model.generate([0], max_new_tokens=30)
        assert (output.token_ids, output.finish_reason) == (list(range(1, delivered + 1)), "error")
        assert f"position {nan_at} " in output.error


def test_padded_vocabulary():
    """C28: 64 rows, 61 ids (0..49 and 60). Id 55 has no text, the top logit after 5, and is treated like any other."""
    tokenizer = PieceTokenizer({i: chr(97 + i % 26) for i in range(50)} | {60: "!"})
    logits = 9.0 * np.roll(np.eye(64), 1, axis=1)
    logits[5, 55], logits[55, 58], logits[58, 60], logits[60, 6] = 20.0, 20.0, 20.0, 20.0
    plain = LanguageModel(TableTarget(logits), tokenizer, drafter=None)
    assert tokenizer.vocab_size == 61
    drafter = ScriptedDrafter([[3, 4, 5, 55, 58, 60, 6, 7]], [2, 0], num_drafts=2, vocab_size=64)
    for model in (plain, plain.with_drafter(drafter)):
        output = model.generate([3], max_new_tokens=7)
        assert (output.token_ids, output.text) == ([4, 5, 55, 58, 60, 6, 7], "ef!gh")
        # The largest ids are usable as options.
        stopped = model.generate([3], max_new_tokens=7, stop_token_ids=[60])
        assert (stopped.token_ids, stopped.text) == ([4, 5, 55, 58, 60], "ef")
        assert model.generate([3], max_new_tokens=3, logit_bias={63: 100.0}).token_ids == [63, 63, 63]


def test_rows_of_a_batch_end_in_their_own_way(blocks):
    params = [
        SamplingParams(max_new_tokens=20, stop_token_ids=[4]),
        SamplingParams(max_new_tokens=20, stop="hi"),
        SamplingParams(max_new_tokens=3),
        SamplingParams(max_new_tokens=0),
        SamplingParams(max_new_tokens=20, min_new_tokens=5, stop_token_ids=[3, 9]),
    ]
    outputs = blocks.generate([[0]] * 5, params)
    assert [output.token_ids[-1:] for output in outputs] == [[4], [8], [3], [], [3]]
    assert [output.finish_reason for output in outputs] == ["stop", "stop", "length", "length", "stop"]
    assert [output.text for output in outputs] == [
        "bcd",
        "bcdefg",
        "bcd",
        "",
        "bcabc",
    ]  # the last one falls back to token 0
