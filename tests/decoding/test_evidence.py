"""The draft side's view of the draw: on the target's own logits its arg-max is the draw itself."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.decoding.evidence import Evidence
from jetspec_jax.decoding.filters import Prefix
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec, row_params, sampling_spec
from jetspec_jax.decoding.sampling import draw
from jetspec_jax.sampling_params import SamplingParams

VOCAB, WINDOW = 50, 6
# First position of each request's window.
BASE = np.array([3, 17, 40], np.int32)
MIXED = (0.0, 0.7, 1.0)

_draw = jax.jit(draw, static_argnames="spec")


def options_of(*temperatures: float) -> tuple[RowParams, SamplingSpec]:
    requests = [SamplingParams(temperature=t, seed=7 + row) for row, t in enumerate(temperatures)]
    return row_params(requests, eos_token_ids=(), vocab_size=VOCAB, device=jax.devices()[0]), sampling_spec(requests)


@partial(jax.jit, static_argnames=("spec", "couple_noise"))
def scores_of(logits, positions, params, spec, *, base=BASE, couple_noise=True):
    evidence = Evidence.of_window(params, spec, jnp.asarray(base), WINDOW, VOCAB, couple_noise=couple_noise)
    return evidence(logits, positions)


def window_positions() -> np.ndarray:
    """[B, P]."""
    return BASE[:, None] + np.arange(WINDOW, dtype=np.int32)[None, :]


def random_logits(*shape: int) -> np.ndarray:
    return (2 * np.random.default_rng(0).normal(size=(*shape, VOCAB))).astype(np.float32)


def drawn(logits: np.ndarray, params: RowParams, spec: SamplingSpec) -> np.ndarray:
    """The target's draws at the window's positions."""
    prefix = Prefix(jnp.zeros((3, 64), jnp.int32), jnp.asarray(window_positions()), jnp.ones(3, jnp.int32))
    return np.asarray(_draw(jnp.asarray(logits), prefix, params, spec).tokens)


@pytest.mark.parametrize(
    "temperatures",
    [pytest.param((t, t, t), id=f"T={t}") for t in MIXED] + [pytest.param(MIXED, id="mixed-batch")],
)
def test_argmax_on_the_targets_logits_is_the_draw(temperatures):
    params, spec = options_of(*temperatures)
    logits = random_logits(3, WINDOW)
    scores = np.asarray(scores_of(logits, window_positions(), params, spec))
    draws = drawn(logits, params, spec)
    np.testing.assert_array_equal(scores.argmax(axis=-1), draws)
    differs = (draws != logits.argmax(axis=-1)).any(axis=1)
    np.testing.assert_array_equal(differs, np.array(temperatures) > 0)  # at T > 0 there was something to foresee


def test_blocks_read_the_noise_of_their_own_positions():
    """Blocks of two rows anywhere in the window, as outcomes are drafted; another set for each request."""
    params, spec = options_of(*MIXED)
    logits = random_logits(3, WINDOW)
    whole = np.asarray(scores_of(logits, window_positions(), params, spec))
    offsets = np.array([[[0, 1], [3, 4]], [[4, 5], [0, 1]], [[2, 3], [2, 3]]], np.int32)
    request = np.arange(3)[:, None, None]
    blocks = scores_of(logits[request, offsets], BASE[:, None, None] + offsets, params, spec)
    np.testing.assert_allclose(blocks, whole[request, offsets], rtol=1e-6)


def test_a_later_window_has_the_same_noise():
    params, spec = options_of(*MIXED)
    logits, positions = random_logits(3, WINDOW), window_positions()
    late = scores_of(logits[:, 2:], positions[:, 2:], params, spec, base=BASE + 2)
    np.testing.assert_allclose(late, scores_of(logits, positions, params, spec)[:, 2:], rtol=1e-6)


@pytest.mark.parametrize("couple_noise", [True, False])
def test_greedy_rows_are_the_logits_untouched(couple_noise):
    logits = random_logits(3, WINDOW)
    for temperatures in (MIXED, (0.0, 0.0, 0.0)):
        params, spec = options_of(*temperatures)
        scores = scores_of(logits, window_positions(), params, spec, couple_noise=couple_noise)
        np.testing.assert_array_equal(scores[0], logits[0])


def test_without_coupling_only_the_temperature_counts():
    params, spec = options_of(0.0, 0.5, 4.0)
    logits = random_logits(3, WINDOW)
    scores = scores_of(logits, window_positions(), params, spec, couple_noise=False)
    np.testing.assert_array_equal(scores, logits * np.array([1.0, 2.0, 0.25], np.float32)[:, None, None])


@pytest.mark.parametrize(
    ("temperatures", "couple_noise"),
    [pytest.param((0.0, 0.0, 0.0), True, id="greedy-batch"), pytest.param(MIXED, False, id="not-coupled")],
)
def test_noise_that_nobody_needs_is_not_drawn(temperatures, couple_noise):
    params, spec = options_of(*temperatures)
    assert Evidence.of_window(params, spec, jnp.asarray(BASE), WINDOW, VOCAB, couple_noise=couple_noise).noise is None


def test_softmax_of_the_scores_knows_the_draw_better():
    """Why noise is coupled: another model of the same law puts far more mass on the draw when it knows the noise."""
    params, spec = options_of(1.0, 1.0, 1.0)
    logits, positions = random_logits(3, WINDOW), window_positions()
    other = logits + 0.1 * np.random.default_rng(1).normal(size=logits.shape).astype(np.float32)
    draws = drawn(logits, params, spec)[..., None]
    mass = {
        couple: np.take_along_axis(
            np.asarray(jax.nn.softmax(scores_of(other, positions, params, spec, couple_noise=couple))), draws, axis=-1
        ).mean()
        for couple in (True, False)
    }
    assert mass[True] > 1.5 * mass[False]
