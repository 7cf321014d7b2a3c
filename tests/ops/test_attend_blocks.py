"""Blocks over a shared context against one softmax with explicit loops, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.ops.attention import MULTIPLE, attend, attend_blocks, causal_mask

# fp32 products over at most 23 keys of numbers of size 1; float64 beside it. Measured: below 1e-6.
FP32_ATOL = 1e-5
# Weights are rounded to bf16 (2^-9 relative) before each product, and so is the result; values reach 4.
BF16_ATOL = 3e-2

BATCH, BLOCKS, ROWS, SLOTS, OWN, HEAD_DIM = 2, 3, 4, 16, 7, 8
# From nothing to all slots; both requests have blocks of different depths.
LENGTHS = np.array([[0, 5, 16], [9, 1, 3]], np.int32)

_attend_blocks = jax.jit(attend_blocks, static_argnames="window")
_attend = jax.jit(attend)


def reference(q, context_keys, context_values, context_len, own_keys, own_values, own_mask, window=None) -> np.ndarray:
    """One query head at a time over the keys it sees."""
    q, context_keys, context_values, own_keys, own_values = (
        np.asarray(x, np.float64) for x in (q, context_keys, context_values, own_keys, own_values)
    )
    out = np.zeros(q.shape)
    group = q.shape[3] // context_keys.shape[1]
    for b, r, t, n in np.ndindex(q.shape[:4]):
        end, kv = int(context_len[b, r]), n // group
        first = 0 if window is None else max(0, end + t - window + 1)
        seen = np.flatnonzero(np.asarray(own_mask)[b, r, t])
        keys = np.concatenate([context_keys[b, kv, first:end], own_keys[b, r, kv, seen]])
        values = np.concatenate([context_values[b, kv, first:end], own_values[b, r, kv, seen]])
        scores = keys @ q[b, r, t, n] / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out[b, r, t, n] = weights / weights.sum() @ values
    return out


def random_inputs(num_heads: int = 4, num_kv_heads: int = 2, dtype=jnp.float32, lengths=LENGTHS) -> dict:
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), dtype)

    own_mask = rng.random((BATCH, BLOCKS, ROWS, OWN)) < 0.4
    own_mask[..., 2] = True  # with an empty context something must be seen
    return {
        "q": normal(BATCH, BLOCKS, ROWS, num_heads, HEAD_DIM),
        "context_keys": normal(BATCH, num_kv_heads, SLOTS, HEAD_DIM),
        "context_values": normal(BATCH, num_kv_heads, SLOTS, HEAD_DIM),
        "context_len": jnp.asarray(lengths),
        "own_keys": normal(BATCH, BLOCKS, num_kv_heads, OWN, HEAD_DIM),
        "own_values": normal(BATCH, BLOCKS, num_kv_heads, OWN, HEAD_DIM),
        "own_mask": jnp.asarray(own_mask),
    }


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"),
    [pytest.param(4, 4, id="multi-head"), pytest.param(6, 2, id="grouped"), pytest.param(4, 1, id="multi-query")],
)
@pytest.mark.parametrize(
    "window",
    [pytest.param(None, id="full"), pytest.param(5, id="window"), pytest.param(2, id="window-shorter-than-the-block")],
)
def test_is_one_softmax_over_context_and_own_keys(num_heads, num_kv_heads, window):
    inputs = random_inputs(num_heads, num_kv_heads)
    out = _attend_blocks(**inputs, window=window)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, reference(**inputs, window=window), rtol=0, atol=FP32_ATOL)


@pytest.mark.parametrize("seed", range(3))
def test_lengths_of_the_blocks_are_their_own(seed):
    lengths = np.random.default_rng(seed).integers(0, SLOTS + 1, (BATCH, BLOCKS), np.int32)
    inputs = random_inputs(lengths=lengths)
    np.testing.assert_allclose(_attend_blocks(**inputs), reference(**inputs), rtol=0, atol=FP32_ATOL)


def test_empty_context_leaves_the_own_keys():
    inputs = random_inputs(lengths=np.zeros((BATCH, BLOCKS), np.int32))
    out = _attend_blocks(**inputs)
    one_own_key = jnp.arange(OWN)[None, None, None, :] == 2
    alone = _attend_blocks(**inputs | {"own_mask": jnp.broadcast_to(one_own_key, inputs["own_mask"].shape)})
    np.testing.assert_allclose(out, reference(**inputs), rtol=0, atol=FP32_ATOL)
    values = jnp.repeat(inputs["own_values"][:, :, :, 2], 2, axis=2)  # [B, R, N, H]
    np.testing.assert_array_equal(alone, jnp.broadcast_to(values[:, :, None], alone.shape))


def test_window_of_one_sees_no_context():
    inputs = random_inputs()
    nothing = inputs | {"context_len": jnp.zeros_like(inputs["context_len"])}
    np.testing.assert_array_equal(_attend_blocks(**inputs, window=1), _attend_blocks(**nothing))


def test_causal_block_is_attention_at_its_position():
    """With its own rows as own keys, a block is what `attend` says of rows that had been written into the cache."""
    start, window = 9, 4
    inputs = random_inputs(lengths=np.full((BATCH, BLOCKS), start, np.int32))
    own = {name: inputs[name][..., :ROWS, :] for name in ("own_keys", "own_values")}
    positions = jnp.broadcast_to(start + jnp.arange(ROWS, dtype=jnp.int32)[None, :], (BATCH, ROWS))
    mask = causal_mask(positions, SLOTS, window)
    own_mask = jnp.broadcast_to(mask[:, None, :, start : start + ROWS], (BATCH, BLOCKS, ROWS, ROWS))
    out = _attend_blocks(**inputs | own | {"own_mask": own_mask}, window=window)
    for block in range(BLOCKS):
        slots = slice(start, start + ROWS)
        keys = inputs["context_keys"].at[:, :, slots].set(own["own_keys"][:, block])
        values = inputs["context_values"].at[:, :, slots].set(own["own_values"][:, block])
        expected = _attend(inputs["q"][:, block], keys, values, mask)
        np.testing.assert_allclose(out[:, block], expected, rtol=0, atol=FP32_ATOL)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("poison", [pytest.param(1e4, id="poison"), pytest.param(-1e30, id="poison-huge")])
def test_unseen_keys_do_not_change_one_bit(dtype, poison):
    inputs = random_inputs(dtype=dtype, lengths=np.array([[0, 5, 11], [9, 1, 3]], np.int32))
    expected = _attend_blocks(**inputs)
    beyond = jnp.arange(SLOTS)[None, :] >= inputs["context_len"].max(axis=1)[:, None]  # [B, S]
    own_unseen = ~inputs["own_mask"].any(axis=2)[:, :, None, :, None]
    poisoned = inputs | {
        name: jnp.where(unseen, poison, inputs[name])
        for name, unseen in {
            "context_keys": beyond[:, None, :, None],
            "context_values": beyond[:, None, :, None],
            "own_keys": own_unseen,
            "own_values": own_unseen,
        }.items()
    }
    np.testing.assert_array_equal(_attend_blocks(**poisoned), expected)


def test_slots_between_the_lengths_reach_the_deeper_blocks_only():
    inputs = random_inputs()
    poisoned = inputs | {name: inputs[name].at[:, :, 3:].set(1e4) for name in ("context_keys", "context_values")}
    before, after = _attend_blocks(**inputs), _attend_blocks(**poisoned)
    is_same = np.asarray(before == after).all(axis=(2, 3, 4))
    np.testing.assert_array_equal(is_same, LENGTHS <= 3)


def test_other_blocks_own_keys_are_not_seen():
    inputs = random_inputs()
    changed = inputs | {name: inputs[name].at[:, 1].set(1e4) for name in ("q", "own_keys", "own_values")}
    before, after = _attend_blocks(**inputs), _attend_blocks(**changed)
    np.testing.assert_array_equal(before[:, [0, 2]], after[:, [0, 2]])
    assert (before[:, 1] != after[:, 1]).any()


@pytest.mark.parametrize("window", [pytest.param(None, id="full"), pytest.param(5, id="window")])
def test_blocks_together_are_blocks_alone(window):
    inputs = random_inputs()
    together = _attend_blocks(**inputs, window=window)
    shared = ("context_keys", "context_values")
    for block in range(BLOCKS):
        alone = {name: x if name in shared else x[:, block : block + 1] for name, x in inputs.items()}
        out = _attend_blocks(**alone, window=window)
        np.testing.assert_allclose(out[:, 0], together[:, block], rtol=0, atol=FP32_ATOL)


@pytest.mark.parametrize("window", [pytest.param(None, id="full"), pytest.param(5, id="window")])
@pytest.mark.parametrize("start", [0, 5, SLOTS])
def test_a_single_block_is_one_softmax_with_a_copied_context(window, start):
    inputs = random_inputs(lengths=np.full((BATCH, BLOCKS), start, np.int32))
    # One block with the rows of two.
    rows = {name: jnp.concatenate([inputs[name][:, :1], inputs[name][:, 1:2]], axis=2) for name in ("q", "own_mask")}
    inputs |= rows | {name: inputs[name][:, :1] for name in ("own_keys", "own_values", "context_len")}
    copied = jax.jit(attend_blocks, static_argnames="window").lower(**inputs, window=window)
    assert f"{BATCH}x2x{MULTIPLE}x{HEAD_DIM}" in copied.as_text()  # keys of context and block, up to a multiple
    np.testing.assert_allclose(copied.compile()(**inputs), reference(**inputs, window=window), rtol=0, atol=FP32_ATOL)


def test_large_scores_do_not_overflow():
    inputs = random_inputs()
    inputs["q"] = 1e4 * inputs["q"]
    # A score of 1e4 is rounded to 1e-3, and so is a weight that is neither 0 nor 1.
    np.testing.assert_allclose(_attend_blocks(**inputs), reference(**inputs), rtol=0, atol=1e-2)


def test_bfloat16_keeps_its_dtype_and_scores_in_fp32():
    inputs = random_inputs(dtype=jnp.bfloat16)
    out = _attend_blocks(**inputs)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float64), reference(**inputs), rtol=0, atol=BF16_ATOL)
