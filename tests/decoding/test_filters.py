"""Filters of the target's logits, by hand and against a sorting implementation in numpy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_jax.decoding.filters import Prefix, apply_filters, truncate
from jetspec_jax.decoding.row_params import RowParams, row_params, sampling_spec
from jetspec_jax.sampling_params import SamplingParams

NEG_INF = -np.inf
# fp32 sums of up to 16 probabilities differ from exact ones by less than this.
SUM_TOLERANCE = 1e-5

_apply = jax.jit(apply_filters, static_argnames="spec")
_truncate = jax.jit(truncate)


def params_of(*requests: SamplingParams, vocab_size: int, eos: tuple[int, ...] = ()) -> RowParams:
    return row_params(requests, eos_token_ids=eos, vocab_size=vocab_size, device=jax.devices()[0])


def filtered(
    logits: list[float], tokens: list[int], *, prompt_len: int, length: int | None = None, eos=(), **options
) -> list[float]:
    """`apply_filters` for one row after `tokens[:length]`, `tokens[:prompt_len]` being the prompt."""
    request = SamplingParams(max_new_tokens=None, **options)
    length = len(tokens) if length is None else length
    prefix = Prefix(jnp.asarray([tokens], jnp.int32), jnp.asarray([[length]]), jnp.asarray([prompt_len]))
    params = params_of(request, vocab_size=len(logits), eos=eos)
    return _apply(jnp.asarray([[logits]], jnp.float32), prefix, params, sampling_spec([request]))[0, 0].tolist()


def truncated(logits: list[float], **options) -> list[float]:
    params = params_of(SamplingParams(temperature=1.0, **options), vocab_size=len(logits))
    return _truncate(jnp.asarray([[logits]], jnp.float32), params)[0, 0].tolist()


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    """C19: tokens 0 and 2 were seen, so token 1 wins."""
    logits = filtered([2.0, 1.9, -1.0], [0, 2], prompt_len=1, repetition_penalty=1.5)
    np.testing.assert_allclose(logits, [1.333, 1.9, -1.5], atol=5e-4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Prompt [0, 1], output [1, 2, 2]; logits 1, 1, 1, 1.
        pytest.param({"repetition_penalty": 2.0}, [0.5, 0.5, 0.5, 1.0], id="repetition-prompt-and-output-once"),
        pytest.param({"presence_penalty": 0.25}, [1.0, 0.75, 0.75, 1.0], id="presence-output-once"),
        pytest.param({"frequency_penalty": 0.25}, [1.0, 0.75, 0.5, 1.0], id="frequency-output-per-occurrence"),
        pytest.param({"frequency_penalty": -0.25}, [1.0, 1.25, 1.5, 1.0], id="negative-rewards"),
        pytest.param({"logit_bias": {3: 2.0, 0: -1.5}}, [-0.5, 1.0, 1.0, 3.0], id="bias"),
        pytest.param({"logit_bias": {1: NEG_INF}}, [1.0, NEG_INF, 1.0, 1.0], id="banned-token"),
        pytest.param(
            {"min_new_tokens": 4, "stop_token_ids": [2]}, [1.0, 1.0, NEG_INF, 1.0], id="C12-too-short-to-stop"
        ),
        pytest.param({"min_new_tokens": 3, "stop_token_ids": [2]}, [1.0, 1.0, 1.0, 1.0], id="C12-long-enough"),
        pytest.param({"repetition_penalty": 2.0, "logit_bias": {0: 1.0}}, [1.5, 0.5, 0.5, 1.0], id="penalty-then-bias"),
        pytest.param({}, [1.0, 1.0, 1.0, 1.0], id="nothing"),
    ],
)
def test_filter(options, expected):
    assert filtered([1.0] * 4, [0, 1, 1, 2, 2], prompt_len=2, **options) == expected


def test_model_end_ids_are_suppressed_too_unless_ignored():
    options = {"prompt_len": 1, "eos": (0, 3), "min_new_tokens": 2, "stop_token_ids": [2]}
    assert filtered([1.0] * 4, [0], **options) == [NEG_INF, 1.0, NEG_INF, NEG_INF]
    assert filtered([1.0] * 4, [0], ignore_eos=True, **options) == [1.0, 1.0, NEG_INF, 1.0]


def test_tokens_beyond_the_row_have_no_effect():
    """C19: what follows `length` is a later draft of the same block, or garbage of a rejected one."""
    options = {"prompt_len": 1, "repetition_penalty": 2.0, "frequency_penalty": 1.0}
    assert filtered([1.0] * 4, [0, 1, 2, 3], length=2, **options) == filtered([1.0] * 4, [0, 1], **options)


def test_each_row_of_a_block_sees_its_own_prefix():
    """Prompt [0], drafts [1, 1]: rows 0, 1, 2 have seen token 1 zero, one, two times."""
    request = SamplingParams(frequency_penalty=0.5)
    prefix = Prefix(jnp.asarray([[0, 1, 1, 3]], jnp.int32), jnp.asarray([[1, 2, 3]]), jnp.asarray([1]))
    logits = jnp.ones((1, 3, 4), jnp.float32)
    rows = _apply(logits, prefix, params_of(request, vocab_size=4), sampling_spec([request]))
    assert rows[0].tolist() == [[1.0, 1.0, 1.0, 1.0], [1.0, 0.5, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0]]


def test_requests_of_a_batch_have_their_own_options():
    requests = [SamplingParams(presence_penalty=1.0), SamplingParams(logit_bias={2: 5.0}), SamplingParams()]
    prefix = Prefix(jnp.zeros((3, 2), jnp.int32), jnp.full((3, 1), 2), jnp.asarray([1, 1, 1]))
    logits = jnp.zeros((3, 1, 3), jnp.float32)
    rows = _apply(logits, prefix, params_of(*requests, vocab_size=3), sampling_spec(requests))
    assert rows[:, 0].tolist() == [[-1.0, 0.0, 0.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]


def test_processors_run_last_and_see_the_prefix():
    def ban_last_token(tokens, length, logits):
        return logits.at[tokens[length - 1]].set(-jnp.inf)

    options = {"prompt_len": 1, "logit_bias": {1: 1.0}, "logits_processors": [ban_last_token, lambda t, n, x: 2 * x]}
    assert filtered([1.0, 1.0, 1.0], [0, 2, 1], length=2, **options) == [2.0, 4.0, NEG_INF]


LOGITS = [float(x) for x in np.log([0.4, 0.3, 0.2, 0.1])]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        pytest.param({"top_k": 1}, [0], id="top-1"),
        pytest.param({"top_k": 3}, [0, 1, 2], id="top-3"),
        pytest.param({"top_k": 4}, [0, 1, 2, 3], id="top-k-equals-vocabulary"),
        pytest.param({"top_k": 99}, [0, 1, 2, 3], id="top-k-beyond-vocabulary"),
        pytest.param({"top_k": 0}, [0, 1, 2, 3], id="top-k-0-keeps-all"),
        pytest.param({"top_p": 0.39}, [0], id="top-p-below-the-first"),
        pytest.param({"top_p": 0.41}, [0, 1], id="top-p-just-above-the-first"),
        pytest.param({"top_p": 0.69}, [0, 1], id="top-p-just-below-two"),
        pytest.param({"top_p": 0.71}, [0, 1, 2], id="top-p-just-above-two"),
        pytest.param({"top_p": 1.0}, [0, 1, 2, 3], id="top-p-1-keeps-all"),
        pytest.param({"top_p": 1e-6}, [0], id="tiny-top-p-keeps-the-likeliest"),
        pytest.param({"top_p": 1e-50}, [0], id="top-p-that-is-0-in-fp32-keeps-the-likeliest"),
        pytest.param({"min_p": 0.26}, [0, 1, 2], id="min-p-above-the-last"),
        pytest.param({"min_p": 0.24}, [0, 1, 2, 3], id="min-p-below-the-last"),
        pytest.param({"min_p": 0.999}, [0], id="min-p-near-1"),
        pytest.param({"top_k": 2, "top_p": 0.58}, [0, 1], id="top-p-of-what-top-k-leaves"),  # 4/7 = 0.571
        pytest.param({"top_k": 2, "top_p": 0.56}, [0], id="top-p-after-renormalising"),
    ],
)
def test_truncation(options, kept):
    assert truncated(LOGITS, **options) == [np.float32(x) if i in kept else NEG_INF for i, x in enumerate(LOGITS)]


@pytest.mark.parametrize(
    ("logits", "options", "kept"),
    [
        pytest.param([1.0, 2.0, 2.0, 2.0], {"top_k": 2}, [1, 2, 3], id="ties-of-the-last-kept-stay"),
        pytest.param([1.0, 1.0, 1.0, 1.0], {"top_p": 0.3}, [0, 1, 2, 3], id="ties-of-top-p-stay"),
        pytest.param([0.0, -0.0, -1.0], {"top_k": 1}, [0, 1], id="minus-zero-is-zero"),
        pytest.param([NEG_INF, 3.0, NEG_INF, 1.0], {"top_k": 3}, [1, 3], id="dropped-tokens-stay-dropped"),
        pytest.param([-5.0, -3.0, -4.0], {"top_k": 2}, [1, 2], id="negative-logits"),
        pytest.param([1e30, -1e30, 3.0], {"top_k": 2}, [0, 2], id="huge-logits"),
    ],
)
def test_truncation_of_special_values(logits, options, kept):
    result = truncated(logits, **options)
    assert [i for i, value in enumerate(result) if value != NEG_INF] == kept


VOCAB = 16
_ONE_ROW = params_of(SamplingParams(temperature=1.0), vocab_size=VOCAB)


@settings(deadline=None, max_examples=100)
@given(
    logits=st.lists(st.integers(-12, 12).map(lambda i: i / 2), min_size=VOCAB, max_size=VOCAB),
    top_k=st.integers(0, VOCAB + 2),
    top_p=st.integers(1, 128).map(lambda i: i / 128),
    min_p=st.integers(0, 125).map(lambda i: i / 128),
)
def test_bisection_equals_sorting(logits, top_k, top_p, min_p):
    row = replace(_ONE_ROW, top_k=jnp.asarray([top_k]), top_p=jnp.asarray([top_p]), min_p=jnp.asarray([min_p]))
    kept = np.isfinite(_truncate(jnp.asarray([[logits]], jnp.float32), row)[0, 0])

    x = np.array(logits, np.float64)
    allowed = x >= np.sort(x)[-top_k] if 0 < top_k <= VOCAB else np.ones(VOCAB, bool)
    probs = np.where(allowed, np.exp(x - x.max()), 0.0)
    probs /= probs.sum()
    # A token stays if the strictly likelier ones do not reach top_p (so ties stay or go together).
    likelier = np.array([probs[probs > p].sum() for p in probs])
    not_small = (probs >= min_p * probs.max() - SUM_TOLERANCE) & allowed
    surely_not_small = (probs >= min_p * probs.max() + SUM_TOLERANCE) & allowed
    assert not np.any(kept & ~(not_small & (likelier < top_p + SUM_TOLERANCE)))
    assert not np.any(surely_not_small & (likelier < top_p - SUM_TOLERANCE) & ~kept)
    assert kept[np.argmax(x)]
