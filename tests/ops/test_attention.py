"""Attention against a naive float64 implementation with explicit loops; masks by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.ops.attention import attend, causal_mask

# fp32 products over at most 32 slots of numbers of size 1; float64 beside it. Measured: below 1e-6.
FP32_ATOL = 1e-5
# Weights and result are rounded to bf16 (2^-9 relative each) and values reach 4.
BF16_ATOL = 3e-2


def naive_attention(q, keys, values, mask) -> np.ndarray:
    """One query head at a time over the slots it sees, in float64."""
    q, keys, values = (np.asarray(x, np.float64) for x in (q, keys, values))
    batch, rows, num_heads, head_dim = q.shape
    group = num_heads // keys.shape[1]
    out = np.zeros(q.shape)
    for b in range(batch):
        for t in range(rows):
            seen = np.flatnonzero(np.asarray(mask)[b, t])
            for n in range(num_heads):
                scores = keys[b, n // group, seen] @ q[b, t, n] / np.sqrt(head_dim)
                weights = np.exp(scores - scores.max())
                out[b, t, n] = weights / weights.sum() @ values[b, n // group, seen]
    return out


def random_inputs(batch, rows, slots, num_heads, num_kv_heads, head_dim, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = ((batch, rows, num_heads, head_dim), *[(batch, num_kv_heads, slots, head_dim)] * 2)
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


@pytest.mark.parametrize(
    ("positions", "num_keys", "window", "expected"),
    [
        pytest.param([[2, 3]], 5, None, [[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]], id="block"),
        pytest.param([[0]], 3, None, [[[1, 0, 0]]], id="first-token"),
        pytest.param([[2]], 3, None, [[[1, 1, 1]]], id="full-cache"),
        pytest.param([[1], [3]], 4, None, [[[1, 1, 0, 0]], [[1, 1, 1, 1]]], id="ragged-rows"),
        pytest.param([[1, 2, 3]], 5, 2, [[[1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0]]], id="C18-window"),
        pytest.param([[3]], 5, 1, [[[0, 0, 0, 1, 0]]], id="window-of-itself"),
        pytest.param([[2]], 4, 9, [[[1, 1, 1, 0]]], id="window-beyond-the-start"),
    ],
)
def test_causal_mask(positions, num_keys, window, expected):
    mask = causal_mask(jnp.array(positions, jnp.int32), num_keys, window)
    np.testing.assert_array_equal(mask, np.array(expected, bool))


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"),
    [pytest.param(4, 4, id="multi-head"), pytest.param(6, 2, id="grouped"), pytest.param(4, 1, id="multi-query")],
)
@pytest.mark.parametrize("window", [pytest.param(None, id="full"), pytest.param(5, id="window")])
@pytest.mark.parametrize("rows", [pytest.param(1, id="one-row"), pytest.param(4, id="block")])
def test_attend_is_softmax_attention(num_heads, num_kv_heads, window, rows):
    q, keys, values = random_inputs(2, rows, 16, num_heads, num_kv_heads, 8)
    positions = jnp.array([[0], [9]], jnp.int32) + jnp.arange(rows, dtype=jnp.int32)[None, :]  # ragged
    mask = causal_mask(positions, 16, window)
    out = attend(q, keys, values, mask)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, naive_attention(q, keys, values, mask), rtol=0, atol=FP32_ATOL)


def test_attend_with_any_mask():
    # Holes, and another set per row: the mask need not be causal (block drafts use others).
    q, keys, values = random_inputs(2, 3, 32, 4, 2, 8)
    mask = np.random.default_rng(1).random((2, 3, 32)) < 0.3
    mask[..., 7] = True
    out = attend(q, keys, values, jnp.asarray(mask))
    np.testing.assert_allclose(out, naive_attention(q, keys, values, mask), rtol=0, atol=FP32_ATOL)


def test_one_visible_slot_returns_its_value():
    q, keys, values = random_inputs(1, 1, 4, 2, 1, 8)
    mask = jnp.array([[[False, False, True, False]]])
    expected = np.broadcast_to(values[:, :, 2], (1, 1, 2, 8))
    np.testing.assert_array_equal(attend(q, keys, values, mask), expected)


def test_large_scores_do_not_overflow():
    q, keys, values = random_inputs(1, 2, 8, 2, 1, 8)
    mask = causal_mask(jnp.array([[3, 4]], jnp.int32), 8)
    out = attend(1e4 * q, keys, values, mask)
    np.testing.assert_allclose(out, naive_attention(1e4 * q, keys, values, mask), rtol=0, atol=FP32_ATOL)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("poison", [pytest.param(1e4, id="C15-poison"), pytest.param(-1e30, id="C15-poison-huge")])
def test_masked_slots_do_not_change_one_bit(dtype, poison):
    q, keys, values = random_inputs(2, 3, 16, 4, 2, 8, dtype)
    mask = causal_mask(jnp.array([[4, 5, 6], [8, 9, 10]], jnp.int32), 16, 4)
    unseen = ~mask.any(axis=1)[:, None, :, None]  # [B, 1, S, 1]
    poisoned = attend(q, jnp.where(unseen, poison, keys), jnp.where(unseen, poison, values), mask)
    np.testing.assert_array_equal(poisoned, attend(q, keys, values, mask))


def test_bfloat16_keeps_its_dtype_and_scores_in_fp32():
    q, keys, values = random_inputs(2, 4, 16, 4, 2, 8, jnp.bfloat16)
    mask = causal_mask(jnp.array([[0, 1, 2, 3], [9, 10, 11, 12]], jnp.int32), 16)
    out = attend(q, keys, values, mask)
    assert out.dtype == jnp.bfloat16
    expected = naive_attention(q, keys, values, mask)
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=0, atol=BF16_ATOL)
