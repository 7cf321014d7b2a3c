"""check_lossless: equal text, near ties and bugs are told apart (C07)."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.evaluation.lossless import check_lossless
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.cache import KVCache
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ByteTokenizer, TableTarget, counting_target, random_drafter, tiny_target

PROMPT = [5, 6, 7]


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(SamplingParams(max_new_tokens=40), id="C07-greedy"),
        pytest.param(SamplingParams(max_new_tokens=40, temperature=1.0, seed=3, top_p=0.9), id="C07-sampled"),
        pytest.param(SamplingParams(max_new_tokens=40, repetition_penalty=1.3), id="C07-penalised"),
    ],
)
def test_fp32_text_is_equal(params):
    model = LanguageModel(tiny_target(), drafter=random_drafter(97, 4), num_drafts=4)
    output = model.generate(PROMPT, params)
    report = check_lossless(model, PROMPT, output.token_ids, params)
    assert report.is_lossless
    assert report.differences == []
    assert report.verdict == "lossless: all 40 tokens equal plain decoding"


def test_planted_cache_bug_is_reported_as_a_bug(monkeypatch):
    model = LanguageModel(tiny_target(), drafter=random_drafter(97, 4), num_drafts=4)
    params = SamplingParams(max_new_tokens=40)
    with monkeypatch.context() as patch:
        # Each round rewinds the cache by one row too many.
        patch.setattr(KVCache, "commit", lambda cache, rows: replace(cache, length=cache.length + rows - 1))
        output = model.generate(PROMPT, params)
    report = check_lossless(model, PROMPT, output.token_ids, params)
    assert not report.is_lossless
    assert report.verdict.startswith("NOT lossless")


@pytest.mark.parametrize(
    ("second", "is_tie"),
    [
        # bf16 numbers around 23.5 are 0.125 apart.
        pytest.param(23.5, True, id="C07-one-step"),
        pytest.param(23.375, True, id="C07-two-steps"),
        pytest.param(23.25, False, id="C07-three-steps"),
        pytest.param(3.0, False, id="C07-far"),
    ],
)
def test_bf16_tie_is_within_two_steps(second, is_tie):
    # Token 1 wins by a margin over token 2 after every token; the text holds token 2 once.
    logits = np.full((3, 3), [0.0, 23.625, second], np.float32)
    model = LanguageModel(TableTarget(logits, dtype=jnp.bfloat16), drafter="autoregressive")
    report = check_lossless(model, [0], [1, 2, 1], SamplingParams())
    (difference,) = report.differences
    assert (difference.position, difference.index) == (2, 1)
    assert (difference.token_id, difference.expected_id) == (2, 1)
    assert difference.gap_steps == pytest.approx((23.625 - second) / 0.125)
    assert difference.is_tie is is_tie
    assert report.is_lossless is is_tie
    assert ("near ties" in report.verdict) is is_tie


def test_sampled_text_without_seed_cannot_be_checked():
    model = LanguageModel(TableTarget(np.zeros((3, 3))), drafter="autoregressive")
    with pytest.raises(ValueError, match="seed"):
        check_lossless(model, [0], [1], SamplingParams(temperature=1.0))


def test_end_of_text_ids_of_the_tokenizer_are_the_checks_too():
    # The config names none; the byte tokenizer ends with 257, which must not be drawn before five tokens are there.
    model = LanguageModel(counting_target(258), ByteTokenizer(), drafter=None)
    params = SamplingParams(max_new_tokens=8, min_new_tokens=5)
    output = model.generate([254], params)
    assert output.token_ids == [255, 256, 0, 1, 2, 3, 4, 5]
    assert check_lossless(model, [254], output.token_ids, params).is_lossless


def test_empty_text_is_lossless():
    model = LanguageModel(TableTarget(np.zeros((3, 3))), drafter="autoregressive")
    assert check_lossless(model, [0], [], SamplingParams()).is_lossless
