"""Drafting and refinement with a real draft and an adapter that predicts the target exactly; the noise of a block."""

from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.decoding.draft_side import DraftSide, noise_tokens, num_block_rows
from jetspec_jax.decoding.evidence import Evidence
from jetspec_jax.decoding.proposal import Proposal
from jetspec_jax.decoding.row_params import SamplingSpec, row_params, sampling_spec
from jetspec_jax.decoding.state import ContextRows
from jetspec_jax.drafters.jetspecpp import JetSpecPP
from jetspec_jax.drafters.predictor import AdapterPredictor
from jetspec_jax.drafters.protocol import DraftView
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import split
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import tiny_config, tiny_target

# Two texts, two blocks in each; a block's anchor is the text's token at its start. The last one has an empty context.
LENGTH, CAPACITY, VOCAB = 12, 48, 97
STARTS = np.array([[11, 4], [7, 0]], np.int32)
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, LENGTH), np.int32)
ANCHORS = np.take_along_axis(TOKENS, STARTS, axis=1)
NOISE = np.random.default_rng(1).integers(0, VOCAB, (2, 2, 31), np.int32)
SMALL = 4  # γ where nothing else is asked for
J3_R3_RENOISED = RefineConfig(num_passes=3, num_refreshes=3, rewritten="renoise")


@cache
def world() -> SimpleNamespace:
    """An untrained draft over a target, and an adapter with one layer for each of the target's."""
    target = tiny_target(tiny_config(num_layers=4, taps=(0, 2)))
    draft = Draft(draft_config_for(target.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(5))
    adapter = Adapter.from_target(target, adapter_config_for(target.config, layers_per_module=(1, 2)))
    decoder, predictor, leaves = target.decoder(), AdapterPredictor(adapter), split(adapter)[1]

    @jax.jit
    def run_target(tokens):
        x, taps, _ = target(tokens, target.init_cache(2, CAPACITY))
        return taps, target.logits(x)

    @jax.jit
    def observe(tokens):
        """Caches of draft and predictor with all rows of the texts; a block sees those before it."""
        taps, zeros = run_target(tokens)[0], jnp.zeros(2, jnp.int32)
        rows = ContextRows(tokens, taps, zeros, zeros + tokens.shape[1])
        state = predictor.observe(leaves, decoder, predictor.init_state(decoder, 2, CAPACITY), rows)
        return draft.extend(draft.init_context(2, CAPACITY), taps), state

    def predict(state):
        return lambda rows, start: predictor.predict(leaves, decoder, state, rows, start)

    return SimpleNamespace(**locals())


@cache
def program(config: RefineConfig, num_drafts: int):
    known = world()

    @jax.jit
    def run(caches, anchors, start, noise):
        context, state = caches
        params = row_params([SamplingParams()] * 2, eos_token_ids=(), vocab_size=97, device=jax.devices()[0])
        evidence = Evidence(params, SamplingSpec(), jnp.zeros(2, jnp.int32), None)
        side = DraftSide(known.draft, context, known.predict(state), known.decoder, evidence, num_drafts)
        return side.draft_blocks(anchors, start, noise, config)

    return run


def padded(texts: list[np.ndarray], width: int = 32) -> np.ndarray:
    return np.stack([np.pad(text, (0, width - len(text))) for text in texts]).astype(np.int32)


def draft_blocks(
    config: RefineConfig | str,
    num_drafts: int = SMALL,
    *,
    text=padded(TOKENS),
    anchors=ANCHORS,
    start=STARTS,
    noise=NOISE,
) -> Proposal:
    config = RefineConfig.parse(config) if isinstance(config, str) else config
    return program(config, num_drafts)(world().observe(text), anchors, start, noise[:, :, :num_drafts])


def greedy_continuation(next_tokens, num: int) -> np.ndarray:
    """[B, R, num], `next_tokens(drafts)` giving the token after the drafts that are there already."""
    drafts = np.zeros((2, 2, 0), np.int32)
    for _ in range(num):
        drafts = np.concatenate([drafts, next_tokens(drafts)[..., None]], axis=-1)
    return drafts


def drafts_own_continuation(num: int) -> np.ndarray:
    """Token by token, each from the last clean row; a causal draft does not see what follows it."""
    known = world()
    context, _ = known.observe(padded(TOKENS))

    @jax.jit
    def next_of_each_row(rows):
        hidden = known.draft(known.decoder.embed(rows), context, jnp.asarray(STARTS))
        return jnp.argmax(known.decoder.head(hidden), axis=-1)

    def next_tokens(drafts):
        rows = np.concatenate([ANCHORS[..., None], drafts, NOISE[..., : num - 1 - drafts.shape[-1]]], axis=-1)
        return np.asarray(next_of_each_row(rows))[..., drafts.shape[-1]]

    return greedy_continuation(next_tokens, num)


def targets_own_continuation(num: int) -> np.ndarray:
    """The target's greedy text after each anchor."""

    def next_tokens(drafts):
        blocks = []
        for r in range(2):
            texts = [np.concatenate([TOKENS[b, : STARTS[b, r] + 1], drafts[b, r]]) for b in range(2)]
            logits = np.asarray(world().run_target(padded(texts))[1])
            blocks.append([logits[b, len(text) - 1].argmax() for b, text in enumerate(texts)])
        return np.array(blocks, np.int32).T

    return greedy_continuation(next_tokens, num)


def test_j_passes_give_j_tokens_of_the_drafts_own_greedy_text():
    """Pass 0 counts as the first; γ passes reach the fixed point."""
    passes = np.asarray(draft_blocks(f"J{SMALL}").trace.passes)
    expected = drafts_own_continuation(SMALL)
    for index in range(SMALL + 1):
        known = min(index + 1, SMALL)
        np.testing.assert_array_equal(passes[:, :, index, :known], expected[:, :, :known])
    np.testing.assert_array_equal(passes[:, :, SMALL - 1], passes[:, :, SMALL])
    assert (passes[:, :, 0] != passes[:, :, SMALL]).any(axis=-1).all()  # there was something to do


@pytest.mark.parametrize("name", ["J3", "J1-R1"])
def test_budget_of_16_begins_that_of_32(name):
    """All passes of it, the first (J0) included; the noise is drawn per row."""
    small, large = draft_blocks(name, 15), draft_blocks(name, 31)
    np.testing.assert_array_equal(small.tokens, large.tokens[:, :, :15])
    np.testing.assert_array_equal(small.trace.passes, large.trace.passes[..., :15])
    np.testing.assert_array_equal(small.trace.proxies, large.trace.proxies[..., :15])
    np.testing.assert_array_equal(small.trace.num_fixed, np.minimum(large.trace.num_fixed, 15))


def test_each_refresh_by_an_exact_predictor_fixes_tokens_of_the_target():
    trace, expected = draft_blocks(J3_R3_RENOISED).trace, targets_own_continuation(SMALL)
    num_fixed = np.asarray(trace.num_fixed)
    assert (num_fixed >= np.arange(4)[None, None, :]).all()
    for b, r, index in np.ndindex(2, 2, 4):
        fixed = num_fixed[b, r, index]
        np.testing.assert_array_equal(trace.passes[b, r, index, :fixed], expected[b, r, :fixed])
        if index < 3:  # what the decoder says after the agreed prefix is the target's too
            after = num_fixed[b, r, index + 1]
            np.testing.assert_array_equal(trace.proxies[b, r, index, :after], expected[b, r, :after])


def test_refreshed_block_is_a_fresh_block_behind_its_fixed_tokens():
    """With exact states, the last pass is that of a block anchored at the last fixed token, all before it text."""
    refined = draft_blocks(J3_R3_RENOISED)
    tokens, num_fixed = np.asarray(refined.tokens), np.asarray(refined.trace.num_fixed[..., -1])
    assert (num_fixed < SMALL).all()
    for r in range(2):
        fixed, own = num_fixed[:, r], tokens[:, r]
        texts = [np.concatenate([TOKENS[b, : STARTS[b, r] + 1], own[b, : fixed[b]]]) for b in range(2)]
        fresh = draft_blocks(
            "J0",
            text=padded(texts),
            anchors=np.stack([[text[-1]] * 2 for text in texts]),
            start=np.stack([[len(text) - 1] * 2 for text in texts]).astype(np.int32),
            noise=np.stack([np.roll(NOISE[b], -fixed[b], axis=-1) for b in range(2)]),
        )
        for b in range(2):
            np.testing.assert_array_equal(fresh.tokens[b, r, : SMALL - fixed[b]], own[b, fixed[b] :])


@pytest.mark.parametrize(
    ("overrides", "num_drafts", "expected"),
    [
        pytest.param({}, 15, 15, id="shifted"),
        pytest.param({"shift": False}, 15, 16, id="in-place"),
        pytest.param({"causal": False}, 4, 16, id="bidirectional-runs-as-trained"),
        pytest.param({"causal": False, "shift": False, "block_rows": 8}, 7, 8, id="bidirectional-in-place"),
    ],
)
def test_number_of_rows(overrides, num_drafts, expected):
    config = draft_config_for(tiny_config(), num_layers=1, **overrides)
    draft = nnx.eval_shape(lambda: Draft(config, dtype=jnp.float32, rngs=nnx.Rngs(0)))
    assert num_block_rows(draft, num_drafts) == expected


_noise = jax.jit(noise_tokens, static_argnames="num_rows")


def noise_of(tokens, anchors, start, num_rows: int, seed: int = 0) -> np.ndarray:
    keys = jax.random.split(jax.random.key(seed), 2)
    return np.asarray(_noise(keys, jnp.asarray(tokens), jnp.asarray(anchors), jnp.asarray(start), num_rows))


def test_noise_is_tokens_of_the_prefix():
    """Text in which each token is its position; at and beyond the anchor it holds garbage."""
    text = np.stack([np.arange(32, dtype=np.int32)] * 2)
    start = np.array([[9, 3], [0, 31]], np.int32)
    noise = noise_of(np.where(text >= start[:, :1], 96, text), start[:, :1], start[:, :1], 512)
    assert [sorted(set(noise[row, 0].tolist())) for row in range(2)] == [list(range(10)), [0]]
    # Uniform: 51 of each expected, deviation below 7.
    assert np.bincount(noise[0, 0]).min() > 25


def test_noise_of_a_small_block_begins_that_of_a_large_one():
    large = noise_of(TOKENS, ANCHORS, STARTS, 31)
    np.testing.assert_array_equal(noise_of(TOKENS, ANCHORS, STARTS, 15), large[:, :, :15])
    assert (noise_of(TOKENS, ANCHORS, STARTS, 31, seed=1) != large)[STARTS > 0].any(axis=-1).all()


def test_noise_of_a_block_is_keyed_by_its_position():
    """The same for a block drafted alone, or beside others, in advance."""
    together = noise_of(TOKENS, ANCHORS, STARTS, SMALL)
    for r in range(2):
        alone = noise_of(TOKENS, ANCHORS[:, r : r + 1], STARTS[:, r : r + 1], SMALL)
        np.testing.assert_array_equal(alone[:, 0], together[:, r])


def test_drafter_with_an_exact_adapter_proposes_a_token_of_the_target():
    """The same through the drafter, after texts of 12 and 8 tokens, with weights in the layout of the device."""
    known, lengths = world(), np.array([LENGTH, 8], np.int32)
    drafting = DraftingConfig(num_drafts=2, refine=RefineConfig.parse("J1-R1"), num_outcomes=0)
    drafter = JetSpecPP(known.draft, known.adapter, drafting=drafting)
    requests = [SamplingParams(seed=1), SamplingParams(seed=2)]
    params = row_params(requests, eos_token_ids=(), vocab_size=VOCAB, device=jax.devices()[0])
    text = np.where(np.arange(32)[None, :] < lengths[:, None], padded(TOKENS), 96).astype(np.int32)

    @jax.jit
    def propose(leaves, text, params):
        taps, zeros = known.run_target(text)[0], jnp.zeros(2, jnp.int32)
        state = drafter.init_state(known.decoder, 2, CAPACITY)
        state = drafter.observe(leaves, known.decoder, state, ContextRows(text, taps, zeros, jnp.asarray(lengths) - 1))
        view = DraftView(text, jnp.asarray(lengths), params, sampling_spec(requests))
        return drafter.propose(leaves, known.decoder, state, view)[0]

    proposal = propose(drafter.place(jax.devices()[0]), text, params)
    assert proposal.trace.num_fixed[:, 1].min() >= 1
    np.testing.assert_array_equal(proposal.tokens[:, :1], targets_own_continuation(1)[:, 0])
