"""Grouped-query attention over a static cache, masked by position (XLA reference; kernels may replace it)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.ops.project import HIGHEST


def causal_mask(query_positions: Int[Array, "B T"], num_keys: int, window: int | None = None) -> Bool[Array, "B T S"]:
    """Key slot s is visible to a query at position p iff `s <= p` (and `s > p - window`).

    Example: queries at positions 2, 3 over 5 slots, no window -> [[1,1,1,0,0], [1,1,1,1,0]].
    """
    slots = jnp.arange(num_keys, dtype=jnp.int32)[None, None, :]
    positions = query_positions[:, :, None]
    visible = slots <= positions
    return visible if window is None else visible & (slots > positions - window)


def attend(
    q: Float[Array, "B T N H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    mask: Bool[Array, "B T S"],
) -> Float[Array, "B T N H"]:
    """Softmax attention with scale `H^-1/2`, scores and softmax in fp32.

    Every query must see at least one key. Masked slots may hold any finite value.
    """
    batch, rows, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    groups = num_heads // num_kv_heads
    # The G queries that share a kv head become rows of one product per kv head: [B, K, G * T, H].
    folded = q.reshape(batch, rows, num_kv_heads, groups, head_dim).transpose(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, num_kv_heads, groups * rows, head_dim)
    scores = jnp.einsum("bkqh,bksh->bkqs", folded, keys, precision=HIGHEST, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, num_kv_heads, groups, rows, -1) * head_dim**-0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf), axis=-1).astype(values.dtype)
    weights = weights.reshape(batch, num_kv_heads, groups * rows, -1)
    out = jnp.einsum("bkqs,bksh->bkqh", weights, values, precision=HIGHEST, preferred_element_type=jnp.float32)
    out = out.reshape(batch, num_kv_heads, groups, rows, head_dim).transpose(0, 3, 1, 2, 4)  # [B, T, K, G, H]
    return out.reshape(batch, rows, num_heads, head_dim).astype(q.dtype)
