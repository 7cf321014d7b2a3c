"""From the fused projection to attention inputs and the cache, in plain jnp: the definition the kernel is held to."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def qk_norm_rope(
    qkv: Float[Array, "B T heads"],
    q_scale: Float[Array, "H"] | None,
    k_scale: Float[Array, "H"] | None,
    cos: Float[Array, "B T half"],
    sin: Float[Array, "B T half"],
    keys: Float[Array, "B K S H"] | None,
    values: Float[Array, "B K S H"] | None,
    start: Int[Array, "B"] | None,
    *,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
) -> tuple[
    Float[Array, "B T N H"],
    Float[Array, "B T K H"],
    Float[Array, "B T K H"],
    Float[Array, "B K S H"] | None,
    Float[Array, "B K S H"] | None,
]:
    """Normalises and rotates q and k, makes v finite, and writes k and v into a cache if there is one.

    Args:
        qkv: heads of q, of k and of v one after the other.
        q_scale, k_scale: of the per-head RMSNorm; None for models without one.
        cos, sin: of each row's angles, fp32, the attention factor multiplied in.
        keys, values: the caches, or None for rows that keep their keys to themselves.
        start: slot of each request's first row; row t goes into slot `start + t`. Rows that do not fit are moved down.
        eps: of the norm.
        num_heads, num_kv_heads: N and K.

    Returns:
        q, k, v, and the caches with the rows in them.
    """
    batch, rows, _ = qkv.shape
    heads = qkv.reshape(batch, rows, num_heads + 2 * num_kv_heads, -1)  # [B, T, N + 2K, H]
    q, k, v = jnp.split(heads, [num_heads, num_heads + num_kv_heads], axis=2)
    q, k = _rotate(_norm(q, q_scale, eps), cos, sin), _rotate(_norm(k, k_scale, eps), cos, sin)
    # A masked value has weight 0 in attention, and 0 * NaN is NaN.
    v = jnp.nan_to_num(v)
    if keys is None:
        return q, k, v, None, None
    return q, k, v, _write(keys, k, start), _write(values, v, start)


def _norm(x: jax.Array, scale: jax.Array | None, eps: float) -> jax.Array:
    if scale is None:
        return x
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return wide.astype(x.dtype) * scale[None, None, None, :].astype(x.dtype)


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)


def _write(buffer: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    rows = jnp.swapaxes(rows, 1, 2).astype(buffer.dtype)  # [B, K, T, H]
    for b in range(buffer.shape[0]):
        buffer = jax.lax.dynamic_update_slice(buffer, rows[b : b + 1], (b, 0, start[b], 0))
    return buffer
