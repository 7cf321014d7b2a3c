"""Adapter and decoder: sizes, catch-up, what a block sees, and exactness when the adapter is the target itself."""

from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import AdapterConfig, RopeConfig, TargetConfig, adapter_config_for, default_taps
from jetspec_jax.decoding.state import ContextRows
from jetspec_jax.drafters.predictor import AdapterPredictor
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.functional import split
from jetspec_jax.models.stack import Segment
from jetspec_jax.models.target import Target
from jetspec_jax.testing import tiny_config, tiny_target

# fp32 states and logits of size 1 to 20, four layers deep, through products of other shapes. Measured: below 2e-5.
EXACT_ATOL = 1e-4
# The same rows with the same layers in chunks of other sizes; states of size 1 to 4. Measured: below 5e-6.
CHUNK_ATOL = 2e-5

BATCH, LENGTH, ROWS, CAPACITY, VOCAB = 2, 24, 6, 48, 97
# Positions of three blocks per request; they overlap.
STARTS = np.array([[3, 17, 9], [0, 12, 18]], np.int32)


def qwen3_8b() -> TargetConfig:
    sizes = {"hidden_size": 4096, "intermediate_size": 12288, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    return tiny_config(num_layers=36, vocab_size=151936, taps=default_taps(36), **sizes)


def test_number_of_parameters_is_the_papers():
    config = adapter_config_for(qwen3_8b())
    assert config.layers_per_module == (2, 2, 2, 3, 3)
    adapter = nnx.eval_shape(lambda: Adapter.random(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(adapter)))
    assert count == 12 * 192_946_432 == 2_315_357_184


@pytest.mark.parametrize(
    ("taps", "split_of"),
    [
        pytest.param((0, 1, 2, 3, 4), (2, 2, 2, 3, 3), id="five"),
        pytest.param((0, 2), (2, 3), id="two"),
        pytest.param((1,), (2,), id="one"),
    ],
)
def test_default_split_has_a_module_for_each_tap(taps, split_of):
    config = adapter_config_for(tiny_config(num_layers=5, taps=taps))
    assert (config.layers_per_module, config.num_layers) == (split_of, sum(split_of))


def test_refuses_modules_without_taps():
    with pytest.raises(ValueError, match=r"layers_per_module=\(1, 2, 3\) for the 2 taps \(0, 2\)"):
        adapter_config_for(tiny_config(num_layers=4, taps=(0, 2)), layers_per_module=(1, 2, 3))
    with pytest.raises(ValueError, match="at least one layer in every module"):
        AdapterConfig(shape=tiny_config().shape, layers_per_module=(2, 0), rope=RopeConfig(theta=1e4))


SLIDING = {
    "layer_types": ("full_attention", "sliding_attention") * 2,
    "sliding_window": 4,
    "ropes": (("full_attention", RopeConfig(theta=1e4)), ("sliding_attention", RopeConfig(theta=1e2))),
}


@cache
def target_of(kind: str) -> Target:
    overrides = {"full": {}, "sliding": SLIDING, "tied": {"tie_word_embeddings": True}, "top-tap": {"taps": (0, 3)}}
    return tiny_target(tiny_config(num_layers=4, **{"taps": (0, 2)} | overrides[kind]))


@cache
def world(kind: str = "full") -> SimpleNamespace:
    """A target, a text, and what the target says of it: `taps` [B, S, M, D] and `logits` [B, S, V]."""
    target = target_of(kind)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (BATCH, LENGTH), np.int32)
    definition, leaves = split(target)

    @jax.jit
    def run(leaves, tokens):
        target = definition.merge(leaves)
        x, taps, _ = target(tokens, target.init_cache(BATCH, LENGTH))
        return taps, target.logits(x)

    taps, logits = run(leaves, tokens)
    return SimpleNamespace(
        target=target, decoder=target.decoder(), tokens=tokens, taps=np.asarray(taps), logits=np.asarray(logits)
    )


@cache
def predictor() -> SimpleNamespace:
    """`AdapterPredictor` over the full target, compiled; with one layer for each of the target's it is exact."""
    known = world()
    adapter = Adapter.from_target(known.target, adapter_config_for(known.target.config, layers_per_module=(1, 2)))
    of = AdapterPredictor(adapter)
    leaves = split(adapter)[1]
    return SimpleNamespace(
        adapter=adapter,
        init=lambda: of.init_state(known.decoder, BATCH, CAPACITY),
        observe=jax.jit(lambda state, rows: of.observe(leaves, known.decoder, state, rows)),
        foresee=jax.jit(lambda state, rows, block: of.foresee(leaves, known.decoder, state, rows, block)),
        predict=jax.jit(lambda state, blocks, start: of.predict(leaves, known.decoder, state, blocks, start)),
    )


def rows_of_text(start: np.ndarray, num_kept: np.ndarray, num_rows: int) -> ContextRows:
    """Rows from `start` on as the target reports them; those that are not kept hold garbage."""
    known = world()
    tokens = np.full((BATCH, num_rows), 96, np.int32)
    taps = np.full((BATCH, num_rows, *known.taps.shape[2:]), 1e3, np.float32)
    for row, (first, kept) in enumerate(zip(start, num_kept, strict=True)):
        tokens[row, :kept] = known.tokens[row, first : first + kept]
        taps[row, :kept] = known.taps[row, first : first + kept]
    return ContextRows(*(jnp.asarray(x, x.dtype) for x in (tokens, taps, start, num_kept)))


def whole_text():
    zeros = np.zeros(BATCH, np.int32)
    return predictor().observe(predictor().init(), rows_of_text(zeros, zeros + LENGTH, LENGTH))


def blocks_of_text(array: np.ndarray) -> np.ndarray:
    """[B, S, ...] -> [B, R, T, ...], the blocks at `STARTS`."""
    return np.stack(
        [[row[start : start + ROWS] for start in starts] for row, starts in zip(array, STARTS, strict=True)]
    )


def assert_same_below(one: KVCache, other: KVCache, lengths) -> None:
    for a, b in zip(one.keys + one.values, other.keys + other.values, strict=True):
        for row, length in enumerate(lengths):
            below = (row, slice(None), slice(length))
            np.testing.assert_allclose(np.asarray(a)[below], np.asarray(b)[below], rtol=0, atol=CHUNK_ATOL)


@pytest.mark.parametrize("seed", range(3))
def test_catching_up_equals_recomputing(seed):
    """Chunks of any size with garbage after the kept rows, each followed by a guess that is not kept."""
    rng, state, start = np.random.default_rng(seed), predictor().init(), np.zeros(BATCH, np.int32)
    for num_kept in rng.integers(0, 7, (4, BATCH), np.int32):
        block = rng.integers(0, VOCAB, (BATCH, ROWS), np.int32)
        *guess, state = predictor().foresee(state, rows_of_text(start, num_kept, ROWS), block)
        start = start + num_kept
    whole, lengths = whole_text(), start.tolist()
    assert min(lengths) > 3
    assert [cache.length.tolist() for cache in state] == [lengths, lengths]
    for incremental, recomputed in zip(state, whole, strict=True):
        assert_same_below(incremental, recomputed, lengths)
    # What the last call foresaw is what a block at the end of the text is predicted to be, from either cache.
    for caches in (state, whole):
        predicted = predictor().predict(caches, np.stack([block] * 3, axis=1), np.stack([start] * 3, axis=1))
        for one, other in zip(guess, predicted, strict=True):
            np.testing.assert_allclose(one, other[:, 1], rtol=0, atol=CHUNK_ATOL)


def test_catching_up_without_a_guess_equals_catching_up_with_one():
    start, num_kept = np.zeros(BATCH, np.int32), np.array([5, 2], np.int32)
    rows = rows_of_text(start, num_kept, ROWS)
    block = np.zeros((BATCH, ROWS), np.int32)
    for one, other in zip(
        predictor().observe(predictor().init(), rows),
        predictor().foresee(predictor().init(), rows, block)[2],
        strict=True,
    ):
        assert one.length.tolist() == other.length.tolist() == [5, 2]
        assert_same_below(one, other, [5, 2])


def test_modules_as_long_as_their_segments_predict_exactly():
    """Taps and, through the decoder, logits of rows that only the target has run."""
    taps, logits = predictor().predict(whole_text(), blocks_of_text(world().tokens), STARTS)
    np.testing.assert_allclose(taps, blocks_of_text(world().taps), rtol=0, atol=EXACT_ATOL)
    np.testing.assert_allclose(logits, blocks_of_text(world().logits), rtol=0, atol=EXACT_ATOL)


def test_foresight_of_an_exact_adapter_is_exact():
    kept, rows = np.array([4, 6], np.int32), np.arange(ROWS)[None, :]
    known, at = world(), kept[:, None] + rows
    block = np.take_along_axis(known.tokens, at, axis=1)
    context = rows_of_text(np.zeros(BATCH, np.int32), kept, ROWS)
    taps, logits, _ = predictor().foresee(predictor().init(), context, block)
    np.testing.assert_allclose(taps, known.taps[np.arange(BATCH)[:, None], at], rtol=0, atol=EXACT_ATOL)
    np.testing.assert_allclose(logits, known.logits[np.arange(BATCH)[:, None], at], rtol=0, atol=EXACT_ATOL)


def test_blocks_together_are_blocks_alone_after_their_context():
    """`predict` over R blocks equals `extend` with a block, one at a time."""
    known = world()
    adapter = predictor().adapter
    blocks = np.random.default_rng(3).integers(0, VOCAB, (BATCH, 3, ROWS), np.int32)
    starts = np.maximum(STARTS, 1)

    @jax.jit
    def context(tokens, taps):
        cache = adapter.init_cache(BATCH, CAPACITY)
        return adapter.extend(known.decoder.embed(tokens), taps, jnp.zeros(BATCH, jnp.int32), cache)[1]

    @jax.jit
    def alone(tokens, taps, start, cache, block, at):
        embedded, after = known.decoder.embed(tokens), Segment(known.decoder.embed(block), at)
        return adapter.extend(embedded, taps, start, cache, after)[0]

    cache = context(known.tokens, known.taps)
    together = jax.jit(lambda *args: adapter.predict(known.decoder.embed(args[0]), *args[1:]))(blocks, cache, starts)
    for r in range(3):
        last = starts[:, r] - 1  # the context row before the block is written once more, with the block
        tokens = np.take_along_axis(known.tokens, last[:, None], axis=1)
        taps = known.taps[np.arange(BATCH), last][:, None]
        out = alone(tokens, taps, last, cache, blocks[:, r], starts[:, r])
        np.testing.assert_allclose(out, together[:, r], rtol=0, atol=CHUNK_ATOL)


def test_predicted_rows_see_the_slots_below_their_start_only():
    state, blocks = whole_text(), blocks_of_text(world().tokens)
    before = predictor().predict(state, blocks, STARTS)
    for slot in (0, 2, 3, 8, 9, 11, 12, 16, 17, 18, 30):
        spoiled = jax.tree.map(lambda x: x if x.ndim == 1 else x.at[:, :, slot].set(9.0), state)  # noqa: B023
        for one, other in zip(before, predictor().predict(spoiled, blocks, STARTS), strict=True):
            is_same = np.asarray(one == other).all(axis=(2, *range(3, one.ndim)))
            np.testing.assert_array_equal(is_same, slot >= STARTS, err_msg=f"slot {slot}")


def test_predicted_blocks_do_not_see_each_other():
    state, blocks = whole_text(), blocks_of_text(world().tokens)
    changed = blocks.copy()
    changed[:, 1] = 96 - changed[:, 1]
    for one, other in zip(
        predictor().predict(state, blocks, STARTS), predictor().predict(state, changed, STARTS), strict=True
    ):
        np.testing.assert_array_equal(one[:, [0, 2]], other[:, [0, 2]])
        assert (one[:, 1] != other[:, 1]).any()


def test_layers_are_copied_evenly_from_each_segment():
    target = tiny_target(tiny_config(num_layers=7, taps=(0, 5)))
    for index, layer in enumerate(target.layers):
        layer.attention_norm.scale[...] = jnp.full((32,), float(index))
    config = adapter_config_for(target.config, layers_per_module=(2, 3))
    adapter = Adapter.from_target(target, config)
    chosen = [[int(layer.attention_norm.scale[...][0]) for layer in module] for module in adapter.chain]
    assert chosen == [[0, 0], [1, 3, 5]]
    # A layer that was chosen twice is two layers.
    assert len(split(adapter)[1]) == 5 * len(split(target.layers[0])[1])
    with pytest.raises(ValueError, match="2 modules for the taps"):
        Adapter.from_target(tiny_target(tiny_config(num_layers=1, taps=(0,))), config)


@pytest.mark.parametrize("kind", ["full", "tied", "top-tap"])
def test_decoder_is_the_targets_by_reference(kind):
    target, decoder = target_of(kind), target_of(kind).decoder()
    owned = {id(leaf) for leaf in split(target)[1]}
    leaves = split(decoder)[1]
    per_layer = len(split(target.layers[0])[1])
    num_layers = {"full": 1, "tied": 1, "top-tap": 0}[kind]
    assert len(leaves) == num_layers * per_layer + (2 if kind == "tied" else 3)  # embedding, norm, head
    assert {id(leaf) for leaf in leaves} <= owned


@pytest.mark.parametrize("kind", ["full", "sliding", "top-tap"])
def test_decoder_on_true_states_gives_the_targets_logits(kind):
    """As a segment and as blocks; the sliding window (4) is shorter than a block (6)."""
    known, definition = world(kind), split(world(kind).decoder)[0]

    @jax.jit
    def run(leaves, states, blocks, starts):
        decoder = definition.merge(leaves)
        segment = Segment(states, jnp.zeros(BATCH, jnp.int32))
        x, cache = decoder.extend([segment], decoder.init_cache(BATCH, CAPACITY))
        return decoder.logits(x), decoder.head(decoder.norm(x)), decoder.predict(blocks, cache, starts)

    states = known.taps[:, :, -1]
    logits, of_normed, predicted = run(split(known.decoder)[1], states, blocks_of_text(states), STARTS)
    np.testing.assert_allclose(logits, known.logits, rtol=0, atol=EXACT_ATOL)
    np.testing.assert_allclose(of_normed, known.logits, rtol=0, atol=EXACT_ATOL)
    np.testing.assert_allclose(predicted, blocks_of_text(known.logits), rtol=0, atol=EXACT_ATOL)
