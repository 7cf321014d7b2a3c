"""Attention of blocks that share a context, in plain jnp: the definition that the kernel is held to."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def shared_prefix_attention(
    q: Float[Array, "B R T N H"],
    context_keys: Float[Array, "B K S H"],
    context_values: Float[Array, "B K S H"],
    context_len: Int[Array, "B R"],
    own_keys: Float[Array, "B R K U H"],
    own_values: Float[Array, "B R K U H"],
    own_mask: Bool[Array, "B R T U"],
) -> Float[Array, "B R T N H"]:
    """One softmax per row over the context below its block's length and over the own keys that its mask shows.

    Scores are scaled by H^-1/2; all arithmetic is fp32, the result has the dtype of q.

    Args:
        context_len: block r sees the context slots below it; slots beyond may hold any finite value.
        own_mask: with an empty context a row must see at least one own key.
    """
    batch, blocks, rows, _, _ = q.shape
    in_context = jnp.arange(context_keys.shape[2])[None, None, :] < context_len[:, :, None]
    visible = jnp.broadcast_to(in_context[:, :, None], (batch, blocks, rows, context_keys.shape[2]))
    visible = jnp.concatenate([visible, own_mask], axis=-1)

    def all_keys(context: Float[Array, "B K S H"], own: Float[Array, "B R K U H"]) -> Float[Array, "B R K SU H"]:
        context = jnp.broadcast_to(context[:, None], (batch, blocks, *context.shape[1:]))
        return jnp.concatenate([context, own], axis=3)

    return _attend(q, all_keys(context_keys, own_keys), all_keys(context_values, own_values), visible)


def cache_attention(
    q: Float[Array, "B T N H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    visible_len: Int[Array, "B T"],
) -> Float[Array, "B T N H"]:
    """One softmax per row over the slots below its length, at least one."""
    visible = jnp.arange(keys.shape[2])[None, None, None, :] < visible_len[:, None, :, None]
    return _attend(q[:, None], keys[:, None], values[:, None], visible)[:, 0]


def _attend(
    q: Float[Array, "B R T N H"],
    keys: Float[Array, "B R K S H"],
    values: Float[Array, "B R K S H"],
    visible: Bool[Array, "B R T S"],
) -> Float[Array, "B R T N H"]:
    head_dim, kv_heads = q.shape[-1], keys.shape[2]
    grouped = q.reshape(*q.shape[:3], kv_heads, -1, head_dim).astype(jnp.float32)
    scores = jnp.einsum("brtkgh,brksh->brtkgs", grouped, keys.astype(jnp.float32), precision="highest")
    scores = jnp.where(visible[:, :, :, None, None], scores * head_dim**-0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("brtkgs,brksh->brtkgh", weights, values.astype(jnp.float32), precision="highest")
    return out.reshape(q.shape).astype(q.dtype)
