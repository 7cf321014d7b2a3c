"""Attention over a shared context: reference against a loop, kernel against the reference, lowered, and on a GPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.shared_prefix_attention import (
    SharedPrefixConfig,
    cache_attention,
    reference,
    shared_prefix_attention,
)
from pallas_kernels.shared_prefix_attention.rows import RowTiles
from pallas_kernels.shared_prefix_attention.shapes import SHAPES, Blocks
from pallas_kernels.testing import interpreted, lower_for

# The kernel rounds weights to 16 bits before they meet the values: results of size 1 move by some units of 2^-8 (bf16).
TOLERANCE = {jnp.bfloat16: 2e-2, jnp.float16: 3e-3}
ONE = SharedPrefixConfig(stages=1, num_splits=1, warpgroups=1)
FUNCTIONS = {False: cache_attention, True: shared_prefix_attention}  # by whether blocks have keys of their own


def inputs(shape: Blocks, context_len, own_mask=None, dtype=jnp.bfloat16) -> tuple:
    """Arguments of the operation; slots that no row of a request sees hold enormous numbers."""
    random = np.random.default_rng(0)

    def normal(*dims):
        return random.normal(size=dims).astype(dtype)

    kv = shape.batch, shape.num_kv_heads, shape.capacity, shape.head_dim
    own = shape.batch, shape.num_blocks, shape.num_kv_heads, shape.num_own, shape.head_dim
    q = normal(shape.batch, shape.num_blocks, shape.num_rows, shape.num_heads, shape.head_dim)
    context_len = np.asarray(context_len, np.int32)
    unseen = np.arange(shape.capacity) >= context_len.max(axis=1, keepdims=True)
    enormous = min(1e30, float(jnp.finfo(dtype).max))
    keys, values = (np.where(unseen[:, None, :, None], enormous, normal(*kv)).astype(dtype) for _ in range(2))
    if not shape.num_own:
        return q[:, 0], keys, values, context_len
    if own_mask is None:
        own_mask = random.random((shape.batch, shape.num_blocks, shape.num_rows, shape.num_own)) < 0.5
        own_mask[:, :, 0] = False  # a row may see the context only
        own_mask[context_len == 0, :, 0] = True  # but it must see something
    return q, keys, values, context_len, normal(*own), normal(*own), own_mask


def assert_alike(got, want) -> None:
    assert got.dtype == want.dtype
    tolerance = TOLERANCE[got.dtype.type]
    np.testing.assert_allclose(
        np.asarray(got, np.float32), np.asarray(want, np.float32), atol=tolerance, rtol=tolerance
    )


def causal(shape: Blocks) -> np.ndarray:
    """Rows see the own keys up to their own, which are the last ones."""
    mask = np.tri(shape.num_rows, shape.num_own, shape.num_own - shape.num_rows, dtype=bool)
    return np.broadcast_to(mask, (shape.batch, shape.num_blocks, *mask.shape))


def loop(q, context_keys, context_values, context_len, own_keys, own_values, own_mask) -> np.ndarray:
    """Row by row, over the keys that the row sees and no others."""
    q, *kv = (np.asarray(x, np.float64) for x in (q, context_keys, context_values, own_keys, own_values))
    out = np.zeros_like(q)
    for b, r, t, n in np.ndindex(*q.shape[:4]):
        k = n * kv[0].shape[1] // q.shape[3]
        seen = np.flatnonzero(own_mask[b, r, t])
        keys, values = (
            np.concatenate([context[b, k, : context_len[b, r]], own[b, r, k, seen]])
            for context, own in ((kv[0], kv[2]), (kv[1], kv[3]))
        )
        scores = keys @ q[b, r, t, n] / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out[b, r, t, n] = weights @ values / weights.sum()
    return out


def test_reference_is_a_softmax_over_what_each_row_sees():
    shape = Blocks(2, 2, 3, 4, num_heads=4, num_kv_heads=2, head_dim=8, capacity=6)
    args = inputs(shape, [[0, 6], [2, 5]])
    got = jax.jit(reference.shared_prefix_attention)(*args)
    np.testing.assert_allclose(np.asarray(got, np.float32), loop(*args), atol=2**-7, rtol=2**-7)


def test_reference_of_a_cache_is_that_of_a_causal_block():
    shape = Blocks(2, 1, 3, 3, num_heads=4, num_kv_heads=2, head_dim=8, capacity=8)
    q, keys, values, start, own_keys, own_values, _ = inputs(shape, [[0], [5]])
    want = jax.jit(reference.shared_prefix_attention)(q, keys, values, start, own_keys, own_values, causal(shape))[:, 0]
    for b in range(2):
        where = slice(start[b, 0], start[b, 0] + 3)
        keys[b, :, where], values[b, :, where] = own_keys[b, 0], own_values[b, 0]
    got = jax.jit(reference.cache_attention)(q[:, 0], keys, values, start + np.arange(1, 4, dtype=np.int32))
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), atol=2**-7)


@pytest.mark.parametrize(
    ("num_blocks", "num_rows", "num_groups"),
    [
        pytest.param(1, 1, 4, id="fewer-than-a-piece"),
        pytest.param(2, 16, 4, id="whole-tiles"),
        pytest.param(2, 17, 4, id="repeated-positions"),
        pytest.param(3, 34, 3, id="filled-up"),
    ],
)
def test_rows_come_back_from_the_tiles(num_blocks, num_rows, num_groups):
    tiles = RowTiles(num_blocks, num_rows, num_groups)
    x = np.arange(2 * num_blocks * num_rows * 3).reshape(2, num_blocks, num_rows, 3)
    spread = jax.jit(tiles.spread)(x)
    assert spread.shape == (2, 64 * tiles.num_tiles, 3)
    back = np.asarray(jax.jit(tiles.gather)(spread[:, None]))  # [B, R, T, K, G, 3]
    np.testing.assert_array_equal(back, np.broadcast_to(x[:, :, :, None, None], back.shape))
    assert back.shape[3:5] == (1, num_groups)


@pytest.mark.parametrize(
    ("shape", "context_len", "dtype", "config"),
    [
        # Lengths at 0, within, at the end of and beyond a step; three steps in two splits.
        pytest.param(
            Blocks(3, 2, 3, 3, num_heads=2, num_kv_heads=1, head_dim=64, capacity=192),
            [[0, 0], [63, 64], [65, 192]],
            jnp.bfloat16,
            SharedPrefixConfig(stages=1, num_splits=2, warpgroups=1),
            id="lengths",
        ),
        # Stages are used again, by two blocks of different lengths.
        pytest.param(
            Blocks(1, 2, 8, 16, num_heads=8, num_kv_heads=1, head_dim=64, capacity=256),
            [[130, 256]],
            jnp.bfloat16,
            SharedPrefixConfig(stages=2, num_splits=1, warpgroups=2),
            id="two-warpgroups",
        ),
        # More splits than steps, a block of two tiles, rows and own keys that fill no piece.
        pytest.param(
            Blocks(1, 1, 17, 17, num_heads=6, num_kv_heads=2, head_dim=128, capacity=128),
            [[70]],
            jnp.bfloat16,
            SharedPrefixConfig(stages=2, num_splits=3, warpgroups=1),
            id="ragged",
        ),
        pytest.param(
            Blocks(1, 1, 8, 40, num_heads=1, num_kv_heads=1, head_dim=64, capacity=256),
            [[200]],
            jnp.float16,
            SharedPrefixConfig(slots=128, stages=1, num_splits=1, warpgroups=1),
            id="wide-steps",
        ),
    ],
)
def test_kernel_is_the_reference(shape, context_len, dtype, config):
    args = inputs(shape, context_len, dtype=dtype)
    with interpreted():
        got = jax.jit(partial(shared_prefix_attention, config=config))(*args)
    assert_alike(got, jax.jit(reference.shared_prefix_attention)(*args))


@pytest.mark.parametrize(
    ("shape", "visible_len"),
    [
        pytest.param(Blocks(2, 1, 1, 0, 4, 2, 64, 128), [[1], [128]], id="one-row"),
        pytest.param(Blocks(1, 1, 9, 0, 4, 1, 64, 128), [[60, 61, 62, 63, 64, 65, 66, 67, 68]], id="verification"),
    ],
)
def test_kernel_of_a_cache_is_the_reference(shape, visible_len):
    args = inputs(shape, visible_len)
    config = SharedPrefixConfig(stages=1, num_splits=2, warpgroups=1)
    with interpreted():
        got = jax.jit(partial(cache_attention, config=config))(*args)
    assert_alike(got, jax.jit(reference.cache_attention)(*args))


@pytest.mark.parametrize("name", ["qwen3-8b-step", "qwen3-8b-verify", "qwen3-8b-refresh-8", "smollm2-135m-foresight-8"])
def test_lowers_for_an_h200(name):
    text = lower_for("NVIDIA H200", FUNCTIONS[SHAPES[name].num_own > 0], *SHAPES[name].arguments(jnp.bfloat16))
    assert text.count("stablehlo.custom_call @mosaic_gpu") == 1


def test_refuses_blackwell():
    with pytest.raises(NotImplementedError, match="needs a Hopper GPU for wgmma, got NVIDIA GB200"):
        lower_for("NVIDIA GB200", cache_attention, *SHAPES["qwen3-8b-verify"].arguments(jnp.bfloat16))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("qwen3-8b-step", SharedPrefixConfig(stages=2, num_splits=16, warpgroups=1), id="a-tile"),
        pytest.param("qwen3-8b-verify", SharedPrefixConfig(stages=2, num_splits=8, warpgroups=1), id="two-tiles"),
        pytest.param("qwen3-8b-draft", SharedPrefixConfig(stages=2, num_splits=16, warpgroups=1), id="own-beside"),
        pytest.param("qwen3-8b-foresight-8", SharedPrefixConfig(stages=4, num_splits=3, warpgroups=2), id="own-counts"),
        pytest.param("qwen3-8b-catch-up", SharedPrefixConfig(stages=2, num_splits=4, warpgroups=1), id="odd-tiles"),
        pytest.param("smollm2-135m-step", SharedPrefixConfig(stages=2, num_splits=16, warpgroups=1), id="by-capacity"),
    ],
)
def test_default_is_about_one_block_a_core(name, expected):
    shape = SHAPES[name]
    tiles = RowTiles(shape.num_blocks, shape.num_rows, shape.num_heads // shape.num_kv_heads)
    heads = shape.batch * shape.num_kv_heads
    assert SharedPrefixConfig.for_shape(tiles, heads, shape.capacity, has_own=shape.num_own > 0) == expected


@pytest.mark.parametrize(
    ("changes", "dtype", "options", "reason"),
    [
        pytest.param({}, jnp.float32, {}, "float32", id="dtype"),
        pytest.param({"head_dim": 96}, jnp.bfloat16, {}, "H must be 64 or 128, got 96", id="head-dim"),
        pytest.param({"num_own": 65}, jnp.bfloat16, {}, "U=65", id="own-keys"),
        pytest.param({"capacity": 100}, jnp.bfloat16, {"config": ONE}, "S=100", id="capacity"),
        pytest.param({"num_heads": 5}, jnp.bfloat16, {}, "got 5 and 2", id="heads"),
        pytest.param({}, jnp.bfloat16, {"window": 8}, "window=8", id="window"),
        pytest.param(
            {},
            jnp.bfloat16,
            {"config": SharedPrefixConfig(stages=2, num_splits=1, warpgroups=2)},
            "1 row tiles",
            id="tiles",
        ),
    ],
)
def test_says_why_it_refuses(changes, dtype, options, reason):
    sizes = {"num_own": 8, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "capacity": 128} | changes
    args = Blocks(1, 1, 8, **sizes).arguments(dtype)
    with pytest.raises(NotImplementedError, match=reason):
        lower_for("NVIDIA H200", partial(shared_prefix_attention, **options), *args)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        pytest.param({"slots": 32, "stages": 1, "num_splits": 1, "warpgroups": 1}, "slots", id="slots"),
        pytest.param({"stages": 1, "num_splits": 1, "warpgroups": 2}, "warpgroups", id="a-stage-a-warpgroup"),
        pytest.param({"stages": 1, "num_splits": 0, "warpgroups": 1}, "num_splits", id="splits"),
    ],
)
def test_refuses_sizes_that_cannot_be(sizes, reason):
    with pytest.raises(ValueError, match=reason):
        SharedPrefixConfig(**sizes)


def test_bytes_are_queries_and_outputs_and_each_key_once():
    shape = Blocks(2, 3, 5, 7, num_heads=4, num_kv_heads=2, head_dim=8, capacity=64)
    queries, context, own = 2 * 3 * 5 * 4 * 8, 2 * 2 * 10 * 8, 2 * 3 * 2 * 7 * 8
    assert shape.bytes_moved(10) == 2 * 2 * (queries + context + own)


@pytest.mark.gpu
@pytest.mark.parametrize("context_len", [1, 64, 1000, 1983])
@pytest.mark.parametrize("name", SHAPES)
def test_on_a_gpu(name, context_len):
    shape = SHAPES[name]
    if shape.num_own:
        lengths = context_len - np.arange(shape.num_blocks) % min(context_len, 3)
    else:
        lengths = context_len + np.arange(shape.num_rows)
    args = inputs(shape, np.broadcast_to(lengths, (shape.batch, lengths.size)))
    function = FUNCTIONS[shape.num_own > 0]
    got = jax.jit(function)(*args)
    assert_alike(got, jax.jit(getattr(reference, function.__name__))(*args))
