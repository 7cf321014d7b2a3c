"""bench's comparison: tau over all rounds, loops cut, and a verdict that says so when speculation loses."""

import pytest

from jetspec_jax.decoding.stats import DecodeStats
from jetspec_jax.drafters import NgramDrafter
from jetspec_jax.evaluation.compare import Comparison, Run, compare, decode_in_turns
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.outputs import GenerationOutput, Usage
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import tiny_target


def output_of(committed: list[int], decode_ms: float, token_ids: list[int] | None = None) -> GenerationOutput:
    num_tokens = 1 + sum(committed)
    stats = DecodeStats(num_drafts=4, rounds=len(committed), committed=committed, decode_ms=decode_ms)
    ids = list(range(num_tokens)) if token_ids is None else token_ids
    return GenerationOutput(ids, "", "length", None, None, [0], None, Usage(1, num_tokens), stats)


def test_run_counts_all_tokens_over_all_rounds():
    run = Run("x", 4, [output_of([5, 5], 100.0), output_of([1, 1, 1, 1], 100.0)])
    assert run.tau == 14 / 6  # not the mean of 5 and 1
    assert run.tokens_per_s == 14 / 0.2
    assert run.round_ms == 200 / 6
    assert run.num_tokens == 16


def test_loops_are_cut_at_their_onset():
    # I04: ten ordinary tokens one by one, then a loop of one token in rounds of five.
    token_ids = [*range(100, 110), *[1] * 200]
    run = Run("x", 4, [output_of([1] * 9 + [5] * 40, 100.0, token_ids)])
    assert run.num_loops == 1
    assert run.tau > 4
    # Copies of 64 end at 210; the third from the end starts at 210 - 3 * 64 = 18.
    assert run.tau_without_loops == pytest.approx((9 + 8) / (9 + 2))


@pytest.mark.parametrize(
    ("speculative_ms", "best", "words"),
    [
        pytest.param(
            50.0, "ngram", "Speculation wins: 2.00 x plain decoding. Recommended: ngram with num_drafts=4", id="wins"
        ),
        pytest.param(200.0, "autoregressive", "Speculation loses here: at best 0.50 x plain decoding", id="loses"),
    ],
)
def test_verdict_is_plain(speculative_ms, best, words):
    comparison = Comparison(
        Run("autoregressive", 0, [output_of([1] * 10, 100.0)]),
        [Run("ngram", 4, [output_of([5, 5], speculative_ms)])],
        [True],
    )
    assert comparison.best.drafter == best
    assert comparison.verdict.startswith(words)
    recommended = comparison.to_dict()["recommended"]
    assert (recommended["drafter"], recommended["num_drafts"]) == (best, 4 if best == "ngram" else 0)
    assert recommended["speedup"] == max(1.0, 100.0 / speculative_ms)


def test_recommends_by_all_prompts_and_tells_the_spread():
    plain = Run("autoregressive", 0, [output_of([1] * 10, 100.0), output_of([1] * 30, 300.0), output_of([], 0.0)])
    small = Run("ngram", 2, [output_of([2] * 5, 125.0), output_of([3] * 10, 150.0), output_of([], 0.0)])
    large = Run("ngram", 8, [output_of([1] * 10, 200.0), output_of([6] * 5, 100.0), output_of([], 0.0)])
    comparison = Comparison(plain, [small, large], [True, True])
    assert comparison.speedups(small) == [pytest.approx(0.8), pytest.approx(2.0), None]
    assert comparison.best is small  # 40 tokens in 275 ms against 300; the larger block wins on the second prompt only
    assert comparison.verdict.startswith(
        "Speculation wins: 1.45 x plain decoding (0.80 to 2.00 by prompt). Recommended: ngram with num_drafts=2"
    )
    assert comparison.to_dict()["runs"][2]["speedup_by_prompt"] == [pytest.approx(0.5), pytest.approx(3.0), None]


class Told(LanguageModel):
    """A model whose decoding times are told in advance."""

    def __init__(self, name: str, times: list[float], log: list[str]):
        self.drafter, self.times, self.log = NgramDrafter(2), iter(times), log
        self.drafter.name = name

    def generate(self, prompt, params) -> GenerationOutput:
        self.log.append(f"{self.drafter.name}{prompt}")
        return output_of([2, 2], float(next(self.times)))


def test_models_take_turns_and_the_median_counts():
    log: list[str] = []
    # The first two of each are the warm-up of two prompts, then prompt 0 and prompt 1 alternate.
    models = [Told("a", [999, 999, 5, 50, 9, 90, 7, 70], log), Told("b", [999, 999, 3, 30, 1, 10, 2, 20], log)]
    runs = decode_in_turns(models, [0, 1], SamplingParams(), 3)
    assert log == ["a0", "a1", "b0", "b1", *["a0", "b0", "a1", "b1"] * 3]
    assert [(run.drafter, [o.stats.decode_ms for o in run.outputs]) for run in runs] == [("a", [7, 70]), ("b", [2, 20])]


def test_compare_measures_phases_and_finds_equal_texts():
    model = LanguageModel(tiny_target(), drafter="ngram", num_drafts=3)
    params = SamplingParams(max_new_tokens=10)
    tried = [model.with_drafter("ngram", num_drafts=count) for count in (2, 3)]
    comparison = compare(model, [[5, 6, 7], [1]], params, tried, passes=1, repeats=3)
    assert (comparison.baseline.drafter, comparison.baseline.num_drafts) == ("autoregressive", 0)
    assert comparison.same_text == [True, True]
    assert [run.num_drafts for run in comparison.runs] == [2, 3]
    for run in comparison.runs:
        assert run.phases.num_rows == run.num_drafts + 1
        assert min(run.phases.ar_ms, run.phases.verify_ms, run.phases.draft_ms) > 0
        assert run.outputs[0].stats.verify_ms == run.phases.verify_ms
