"""End to end on a tiny model, with a stand-in for the interpreter that would run transformers."""

import json

import jax
import pytest

import jetspec_jax
from benchmarks import peer_generate, speed
from jetspec_jax.decoding.stats import DecodeStats
from jetspec_jax.evaluation.compare import Run
from jetspec_jax.outputs import GenerationOutput, Usage
from jetspec_jax.testing import write_tiny_checkpoint

PEER = """#!/bin/sh
echo '{"static": {"tokens": [TEXT], "call_tokens_per_s": 1.0}, "dynamic": {"error": "none"}}'
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), max_len=256)


@pytest.fixture(scope="module")
def model(folder):
    return jetspec_jax.load(folder, drafter="autoregressive", progress=False)


def script(path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def arguments(folder, *more: str):
    sizes = ["--num-prompts", "1", "--max-new-tokens", "8", "--repeats", "1", "--num-drafts", "3", "--ignore-eos"]
    return speed.parse(["--model", str(folder), "--configs", "J0", *sizes, *more])


def test_measures_all_and_compares_the_texts(folder, model, tmp_path, capsys):
    prompt = [{"role": "user", "content": speed.PROMPTS[0]}]
    text = model.generate(prompt, max_new_tokens=8, ignore_eos=True).token_ids
    theirs = [*text[:5], (text[5] + 1) % 288, *text[6:]]
    python = script(tmp_path / "python", PEER.replace("TEXT", json.dumps(theirs)))
    record = speed.measure(arguments(folder, "--peer-python", python), model)
    assert list(record["configs"]) == ["AR", "J0"]
    assert record["configs"]["AR"]["tau"] == 1
    assert record["configs"]["AR"]["host_ms"].keys() == {"plain round"}
    assert record["agreement"]["J0"] == [{"equal": 8, "of": 8}]
    (found,) = record["agreement"]["transformers static"]
    assert (found["equal"], found["of"]) == (5, 8)
    assert found["gap"] is None or found["gap"] >= 0
    ours = record["configs"]["J0"]["call_tokens_per_s"]
    assert record["speedup"]["J0"]["transformers static"] == ours
    assert record["speedup"]["AR"]["AR"] == 1
    assert "transformers dynamic" not in record["speedup"]["J0"]
    assert json.loads(capsys.readouterr().out.splitlines()[0])["config"] == "AR"


def test_a_gap_is_what_the_target_thinks_of_both_tokens(model):
    prompt = [1, 2, 3]
    output = model.generate(prompt, max_new_tokens=3, ignore_eos=True, logprobs=8)
    (best, best_logprob), (second, second_logprob) = output.logprobs[1].top[:2]
    theirs = [output.token_ids[0], second, 0]
    found = speed.agreement(model, prompt, output.token_ids, theirs)
    assert (output.token_ids[1], found["equal"]) == (best, 1)
    assert found["gap"] == pytest.approx(best_logprob - second_logprob, abs=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [
        pytest.param([], [1], 0, id="none"),
        pytest.param([1, 2], [1, 2], 2, id="all"),
        pytest.param([1, 2], [3, 2], 0, id="first"),
        pytest.param([1, 2, 3], [1, 2, 4], 2, id="last"),
        pytest.param([1, 2, 3], [1, 2], 2, id="shorter"),
    ],
)
def test_common_prefix(a, b, length):
    assert speed.common_len(a, b) == length


def test_drafting_ahead_is_for_refined_blocks_on_another_device(model):
    args = speed.parse(["--configs", "J0,J1-R1", "--draft-device", "1", "--num-drafts", "3"])
    found = speed.configurations(model, args)
    assert list(found) == ["AR", "J0", "J1-R1", "J1-R1/B4"]
    ahead = found["J1-R1/B4"]
    assert ahead.drafter.drafting.num_outcomes == 4
    assert ahead.programs.draft_device == jax.devices()[1]


def test_a_peer_that_fails_or_is_late_costs_nothing_else(folder, model, tmp_path):
    failing = script(tmp_path / "failing", "#!/bin/sh\necho no torch >&2; exit 1\n")
    assert speed.peer(arguments(folder, "--peer-python", failing), model, [[1]]) == {"error": ["no torch"]}
    late = script(tmp_path / "late", """#!/bin/sh\necho '{"static": {}}'; exec sleep 60\n""")
    found = speed.peer(arguments(folder, "--peer-python", late, "--peer-seconds", "0.5"), model, [[1]])
    assert found == {"static": {}, "error": "stopped after 0.5 s"}


def test_speeds_are_of_calls_and_of_decoding():
    stats = DecodeStats(num_drafts=3, rounds=2, committed=[2, 2], prefill_ms=100.0, decode_ms=400.0)
    output = GenerationOutput([1, 2, 3, 4, 5], "", "length", None, None, [0], None, Usage(1, 5), stats)
    found = speed.numbers(Run("x", 3, [output]), {})
    assert (found["call_tokens_per_s"], found["tokens_per_s"]) == (10, 10)
    # Two texts of 5 tokens: 10 in 500 ms, 8 of them in 400.
    assert peer_generate.speeds([[1] * 5] * 2, [250, 250], [50, 50]) == {"call_tokens_per_s": 20, "tokens_per_s": 20}
