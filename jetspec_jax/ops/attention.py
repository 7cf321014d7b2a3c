"""Grouped-query attention over a static cache, masked by position: XLA forms, and kernels where they are faster."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jetspec_jax.ops.kernels import choose
from jetspec_jax.ops.products import product

# A context of so few bytes of keys is copied beside the own keys of a single block of so many rows. One softmax has
# eight launches less than one in two parts, which take a GPU longer than the copy; with fewer rows a CPU is faster in
# parts.
COPIED_BYTES, FEWEST_ROWS, MULTIPLE = 2**20, 8, 64


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
    scores = product("bkqh,bksh->bkqs", folded, keys)
    scores = scores.reshape(batch, num_kv_heads, groups, rows, -1) * head_dim**-0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf), axis=-1).astype(values.dtype)
    weights = weights.reshape(batch, num_kv_heads, groups * rows, -1)
    out = product("bkqs,bksh->bkqh", weights, values)
    out = out.reshape(batch, num_kv_heads, groups, rows, head_dim).transpose(0, 3, 1, 2, 4)  # [B, T, K, G, H]
    return out.reshape(batch, rows, num_heads, head_dim).astype(q.dtype)


def attend_cached(
    q: Float[Array, "B T N H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    positions: Int[Array, "B T"],
    window: int | None = None,
) -> Float[Array, "B T N H"]:
    """Attention of rows at `positions` over a cache that holds their own keys: each sees the slots up to its position.

    Args:
        window: sliding window in tokens, None for all.
    """

    def kernel():
        from pallas_kernels.shared_prefix_attention import cache_attention

        if window is not None:
            raise NotImplementedError(f"no sliding windows, got window={window}")
        return cache_attention(q, keys, values, positions + 1)

    def otherwise():
        return attend(q, keys, values, causal_mask(positions, keys.shape[2], window))

    return choose("attention", kernel, otherwise)


def attend_blocks(
    q: Float[Array, "B R T N H"],
    context_keys: Float[Array, "B K S H"],
    context_values: Float[Array, "B K S H"],
    context_len: Int[Array, "B R"],
    own_keys: Float[Array, "B R K U H"],
    own_values: Float[Array, "B R K U H"],
    own_mask: Bool[Array, "B R T U"],
    *,
    window: int | None = None,
) -> Float[Array, "B R T N H"]:
    """Attention of R blocks of a request that share one context, each beside keys of its own; one softmax over both.

    The context is read once for all blocks (it is neither copied nor repeated per block), which is what makes drafting
    for many outcomes nearly as cheap as for one.

    Args:
        q: queries; row o of block r stands at position `context_len + o`.
        context_keys, context_values: the shared cache.
        context_len: block r sees slots below it.
        own_keys, own_values: keys that only this block sees.
        own_mask: which of them each query sees; with an empty context at least one.
        window: sliding window in tokens over the context, None for all of it.
    """
    arguments = (q, context_keys, context_values, context_len, own_keys, own_values, own_mask)

    def kernel():
        from pallas_kernels.shared_prefix_attention import shared_prefix_attention

        return shared_prefix_attention(*arguments, window=window)

    return choose("attention", kernel, lambda: _attend_blocks(*arguments, window))


def _attend_blocks(
    q: Float[Array, "B R T N H"],
    context_keys: Float[Array, "B K S H"],
    context_values: Float[Array, "B K S H"],
    context_len: Int[Array, "B R"],
    own_keys: Float[Array, "B R K U H"],
    own_values: Float[Array, "B R K U H"],
    own_mask: Bool[Array, "B R T U"],
    window: int | None,
) -> Float[Array, "B R T N H"]:
    batch, blocks, rows, num_heads, head_dim = q.shape
    num_kv_heads, num_slots = context_keys.shape[1:3]
    slots = jnp.arange(num_slots, dtype=jnp.int32)[None, None, None, :]
    visible = slots < context_len[:, :, None, None]  # [B, R, 1, S]
    if window is not None:
        offsets = jnp.arange(rows, dtype=jnp.int32)[None, None, :, None]
        visible = visible & (slots > context_len[:, :, None, None] + offsets - window)
    if blocks == 1 and rows >= FEWEST_ROWS and context_keys.size * context_keys.dtype.itemsize <= COPIED_BYTES:
        visible = jnp.broadcast_to(visible[:, 0], (batch, rows, num_slots))
        # In multiples, or XLA pads keys and weights in kernels of their own.
        pairs = ((context_keys, own_keys), (context_values, own_values), (visible, own_mask))
        keys, values, mask = (_beside(context, own[:, 0], axis=2) for context, own in pairs)
        return attend(q[:, 0], keys, values, mask)[:, None]
    groups = num_heads // num_kv_heads
    folded = q.reshape(batch, blocks, rows, num_kv_heads, groups, head_dim).transpose(0, 3, 1, 4, 2, 5)
    shared = folded.reshape(batch, num_kv_heads, -1, head_dim)  # [B, K, R * G * T, H]
    on_context = product("bkqh,bksh->bkqs", shared, context_keys)
    on_context = on_context.reshape(batch, num_kv_heads, blocks, groups, rows, num_slots)
    own = folded.reshape(batch, num_kv_heads, blocks, groups * rows, head_dim)
    on_own = product("bkrqh,brkuh->bkrqu", own, own_keys)
    on_own = on_own.reshape(batch, num_kv_heads, blocks, groups, rows, -1)

    scale = head_dim**-0.5
    on_context = jnp.where(visible[:, None, :, None], on_context * scale, -jnp.inf)
    on_own = jnp.where(own_mask[:, None, :, None], on_own * scale, -jnp.inf)
    # One softmax in two parts, joined by their maximum and sum: neither part is copied beside the other.
    top = jnp.maximum(jnp.max(on_context, axis=-1), jnp.max(on_own, axis=-1))[..., None]
    on_context, on_own = jnp.exp(on_context - top), jnp.exp(on_own - top)
    total = (jnp.sum(on_context, axis=-1) + jnp.sum(on_own, axis=-1))[..., None]
    on_context = (on_context / total).astype(context_values.dtype).reshape(*shared.shape[:3], -1)
    on_own = (on_own / total).astype(own_values.dtype).reshape(*own.shape[:4], -1)
    from_context = product("bkqs,bksh->bkqh", on_context, context_values)
    from_own = product("bkrqu,brkuh->bkrqh", on_own, own_values)
    out = from_context.reshape(folded.shape) + from_own.reshape(folded.shape)
    return out.transpose(0, 2, 4, 1, 3, 5).reshape(q.shape).astype(q.dtype)


def _beside(context: Shaped[Array, "..."], own: Shaped[Array, "..."], axis: int) -> Shaped[Array, "..."]:
    """Both along an axis, and zeros up to a multiple."""
    both = jnp.concatenate([context, own], axis=axis)
    return jnp.pad(both, [(0, -size % MULTIPLE if index == axis else 0) for index, size in enumerate(both.shape)])
