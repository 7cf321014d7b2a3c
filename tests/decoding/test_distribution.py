"""The law of the committed text is the target's own, whatever is drafted: 20,000 seeds against exact probabilities.

All requests run at once: everything a round does is pure, so one request is simply mapped over the keys.
"""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.decoding.filters import Prefix
from jetspec_jax.decoding.round import verify_round
from jetspec_jax.decoding.row_params import SamplingSpec, row_params
from jetspec_jax.decoding.sampling import draw
from jetspec_jax.decoding.state import RoundState
from jetspec_jax.decoding.verify import num_accepted
from jetspec_jax.drafters import CallableDrafter, DraftView, StatelessDrafter
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import NoisyDrafter, TableTarget, random_drafter

LAW = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])
NUM_SEEDS, NUM_DRAFTS, CAPACITY = 20_000, 2, 16
# 8 degrees of freedom: a right program exceeds this once in a million tries.
CHI_SQUARE_LIMIT = 43.0
SPEC = SamplingSpec(samples=True)
TABLE = jnp.log(jnp.asarray(LAW, jnp.float32))


def view_anchor(view: DraftView):
    return jnp.take_along_axis(view.tokens, view.length[:, None] - 1, axis=1)[:, 0]


class ArgmaxDrafter(StatelessDrafter):
    """Proposes the likeliest continuation under its table of logits."""

    name, num_drafts, leaves = "argmax", NUM_DRAFTS, (TABLE,)

    def propose(self, leaves, decoder, state, view):
        drafts = [view_anchor(view)]
        for _ in range(NUM_DRAFTS):
            drafts.append(jnp.argmax(leaves[0][drafts[-1]], axis=-1).astype(jnp.int32))
        return jnp.stack(drafts[1:], axis=1), state


class IndependentDrafter(StatelessDrafter):
    """Draws its proposals from the target's law with noise of its own."""

    name, num_drafts, leaves = "independent", NUM_DRAFTS, (TABLE,)

    def propose(self, leaves, decoder, state, view):
        key = jax.random.fold_in(jax.random.fold_in(view.params.key[0], jnp.uint32(2**31 + 7)), view.length[0])
        drafts = [view_anchor(view)]
        for step_key in jax.random.split(key, NUM_DRAFTS):
            drafts.append(jax.random.categorical(step_key, leaves[0][drafts[-1]], axis=-1).astype(jnp.int32))
        return jnp.stack(drafts[1:], axis=1), state


def draft_twos(tokens, length):
    return jnp.full((NUM_DRAFTS,), 2, jnp.int32)


ARGMAX, NOISY = ArgmaxDrafter(), NoisyDrafter(TABLE, num_drafts=NUM_DRAFTS)
# Each with its table, if it has one, as an argument of the compiled rounds.
DRAFTERS = {
    "argmax": (ARGMAX, (TABLE,)),
    "surer-argmax": (ARGMAX, (5 * TABLE + 1,)),
    "random": (CallableDrafter(random_drafter(3, NUM_DRAFTS), NUM_DRAFTS), ()),
    "constant": (CallableDrafter(draft_twos, NUM_DRAFTS), ()),
    "same-noise": (NOISY, (TABLE,)),
    "same-noise-other-law": (NOISY, (TABLE[::-1],)),
    "independent": (IndependentDrafter(), (TABLE,)),
}


def keys_of(seeds):
    """As `row_params` makes them of seeds below 2^32."""
    return jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), 0))(seeds)


@pytest.fixture(scope="module")
def first_two():
    """`(drafter name, temperature) -> tokens [N, 2] after state 0, accepted drafts [N] of the first round`."""
    target, programs = TableTarget(np.asarray(TABLE)), {}
    params = row_params([SamplingParams(temperature=1.0)], eos_token_ids=(), vocab_size=3, device=jax.devices()[0])

    def two_rounds(drafter, leaves, temperature, key):
        request = replace(params, key=key[None], temperature=temperature[None])
        one, zero = jnp.ones((1,), jnp.int32), jnp.zeros((1,), jnp.int32)
        tokens = jnp.zeros((1, CAPACITY), jnp.int32)
        cache = target.init_cache(1, CAPACITY)
        state = RoundState(tokens, one, one, request=zero, round=zero, cache=cache)
        decoder, committed = target.decoder(), []
        draft_state = drafter.init_state(decoder, 1, CAPACITY)
        for _ in range(2):
            view = DraftView(state.tokens, state.length, request, SPEC)
            drafts, draft_state = drafter.propose(leaves, decoder, draft_state, view)
            state, out, _ = verify_round(target, state, drafts, one > 0, request, SPEC)
            committed.append(out.num_committed[0])
        return state.tokens[0, 1:3], committed[0] - 1

    def run(name: str, temperature: float):
        drafter, leaves = DRAFTERS[name]
        if drafter.name not in programs:
            programs[drafter.name] = jax.jit(jax.vmap(partial(two_rounds, drafter), in_axes=(None, None, 0)))
        keys = keys_of(jnp.arange(NUM_SEEDS, dtype=jnp.uint32))
        return jax.device_get(programs[drafter.name](leaves, jnp.float32(temperature), keys))

    return run


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = counts.sum() * probs
    return float(np.sum((counts - expected) ** 2 / expected))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param("argmax", id="C03-C04-argmax"),
        pytest.param("random", id="C03-random"),
        pytest.param("constant", id="C03-constant"),
        pytest.param("same-noise", id="C05-same-noise"),
        pytest.param("same-noise-other-law", id="C05-same-noise-other-law"),
        pytest.param("independent", id="C03-independent"),
    ],
)
def test_first_two_tokens_follow_the_targets_law(first_two, drafter, temperature):
    tokens, _ = first_two(drafter, temperature)
    law = LAW ** (1 / temperature)
    law /= law.sum(axis=1, keepdims=True)
    counts = np.array([[np.sum((tokens == [a, b]).all(axis=1)) for b in range(3)] for a in range(3)])
    assert chi_square(counts, law[0][:, None] * law) < CHI_SQUARE_LIMIT


@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name != "argmax"])
def test_drafts_do_not_change_a_single_token(first_two, drafter):
    assert np.array_equal(first_two(drafter, 1.0)[0], first_two("argmax", 1.0)[0])


def test_mapped_rounds_are_those_of_the_public_call(first_two):
    model = LanguageModel(TableTarget(np.asarray(TABLE)), drafter=ARGMAX)
    params = [SamplingParams(max_new_tokens=2, temperature=1.0, seed=seed) for seed in range(8)]
    outputs = model.generate([[0]] * 8, params)
    assert [output.token_ids for output in outputs] == first_two("argmax", 1.0)[0][:8].tolist()


def test_argmax_drafts_are_accepted_at_least_as_often_as_drawn_ones():
    """Exact for one draft: the likeliest token is right with max p, a drawn one with sum p^2 (C03)."""
    for probs in LAW:
        assert max(probs) >= np.sum(probs**2)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_mean_accepted_of_argmax_and_shared_noise(first_two, temperature):
    mean = {name: first_two(name, temperature)[1].mean() for name in ("argmax", "independent", "same-noise")}
    assert mean["argmax"] >= mean["independent"]  # C03
    assert mean["same-noise"] >= mean["argmax"]  # the reason for noise-coupled drafting
    if temperature == 1.0:
        assert mean["same-noise"] == NUM_DRAFTS  # the draft is the draw


def test_replacing_draft_logits_but_not_draft_tokens_changes_nothing(first_two):
    """C02: no draft probability takes part: a draft that is surer of the same tokens is accepted as often."""
    for plain, surer in zip(first_two("argmax", 1.0), first_two("surer-argmax", 1.0), strict=True):
        assert np.array_equal(plain, surer)


# One position: the target's law p, the draft's softmax q, the draft's token 0.
P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])


def test_point_mass_draft_commits_the_targets_law():
    """C02: token 0 is accepted with probability 0.5; otherwise p without token 0, that is (0.6, 0.4) on 1 and 2."""
    params = row_params([SamplingParams(temperature=1.0)], eos_token_ids=(), vocab_size=3, device=jax.devices()[0])
    prefix = Prefix(jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 1), jnp.int32), jnp.ones((1,), jnp.int32))
    logits = jnp.log(jnp.asarray(P, jnp.float32))[None, None]

    @jax.jit
    @jax.vmap
    def commit(key):
        tokens = draw(logits, prefix, replace(params, key=key[None]), SPEC).tokens
        return num_accepted(jnp.zeros((1, 1), jnp.int32), jnp.pad(tokens, ((0, 0), (0, 1))))[0], tokens[0, 0]

    accepted, tokens = jax.device_get(commit(keys_of(jnp.arange(NUM_SEEDS, dtype=jnp.uint32))))
    assert np.array_equal(accepted, tokens == 0)
    counts = np.bincount(tokens, minlength=3)
    assert chi_square(counts, P) < CHI_SQUARE_LIMIT
    np.testing.assert_allclose(counts[1:] / counts[1:].sum(), [0.6, 0.4], atol=0.02)  # 4 standard deviations


def test_counterexample_ratio_rule_with_a_softmax_the_draft_was_not_drawn_from():
    """C02: accept with min(1, p/q), else draw from max(p - q, 0). Token 1 never appears. Not what we do."""
    accept = min(1.0, P[0] / Q[0])
    residual = np.maximum(P - Q, 0)
    law = accept * np.eye(3)[0] + (1 - accept) * residual / residual.sum()
    np.testing.assert_allclose(law, [0.833, 0.0, 0.167], atol=5e-4)


def test_counterexample_fresh_draw_after_a_mismatch():
    """C04: draft d from q, draw y from p; on a mismatch draw afresh instead of committing y. Not what we do."""
    law, ours = np.zeros(3), np.zeros(3)
    for d, y in product(range(3), range(3)):
        law += Q[d] * P[y] * (np.eye(3)[y] if d == y else P)
        ours += Q[d] * P[y] * np.eye(3)[y]
    np.testing.assert_allclose(law, [0.595, 0.267, 0.138], atol=5e-4)
    np.testing.assert_allclose(ours, P)
