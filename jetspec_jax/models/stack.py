"""Stacks of decoder layers over a cache, in the two forms that drafting needs.

*Segments* are runs of consecutive positions whose keys go into the cache (a prompt chunk, newly committed rows, the
block under verification). *Blocks* are alternatives that share a cache and keep their keys to themselves (one an
outcome).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.config import RopeConfig
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.layers import DecoderLayer
from jetspec_jax.ops.attention import attend_blocks, attend_cached
from jetspec_jax.ops.kernels import missing_rows
from jetspec_jax.ops.norm_rope import rope_angles


@dataclass(frozen=True)
class LayerKind:
    """How a layer attends.

    Attributes:
        rope: its RoPE.
        window: sliding window in tokens, None for full attention.
    """

    rope: RopeConfig
    window: int | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Segment:
    """Rows at consecutive positions.

    Attributes:
        x: [B, T, D], residual stream of the rows.
        start: [B], position of the first row.
    """

    x: Float[Array, "B T D"]
    start: Int[Array, "B"]

    @property
    def positions(self) -> Int[Array, "B T"]:
        """Absolute positions of the rows."""
        return self.start[:, None] + jnp.arange(self.x.shape[1], dtype=jnp.int32)[None, :]


def run_segments(
    layers: Sequence[DecoderLayer], kinds: Sequence[LayerKind], segments: Sequence[Segment], cache: KVCache, first: int
) -> tuple[Float[Array, "B _ D"], KVCache]:
    """Runs one segment, or two together, through layers: one read of the weights, all keys written.

    Of two segments the second begins within the first or right behind it: rows of the first from there on are not kept
    (the rejected rows of a verified block) and are left out, so that what runs is one run of positions.

    Args:
        layers, kinds: the stack.
        segments: in the order of their positions, T and U rows. Slots up to T + U rows behind the first one's start are
            written, garbage where there are fewer rows.
        cache: keys of the layers from index `first` on; its length is not looked at.
        first: index of the first layer in the cache.

    Returns:
        The residual stream of the last segment, and the cache (its length is the first segment's start).
    """
    context, block = segments[0], segments[-1]
    x, num_kept = context.x, block.start - context.start
    if len(segments) == 2:
        x = joined(context.x, block.x, num_kept)
    num_rows = x.shape[1]
    x = jnp.pad(x, ((0, 0), (0, missing_rows(*x.shape[:2])), (0, 0)))
    positions = Segment(x, context.start).positions
    cache = cache.with_length(context.start)
    for index, (layer, kind) in enumerate(zip(layers, kinds, strict=True), start=first):
        angles = rope_angles(positions, kind.rope, layer.attention.shape.head_dim)
        q, cache = layer.queries_and_cache(x, angles, kind.rope, cache, index)
        x = layer.finish(x, attend_cached(q, cache.keys[index], cache.values[index], positions, kind.window))
    if len(segments) == 1:
        return x[:, :num_rows], cache
    of_block = num_kept[:, None] + jnp.arange(block.x.shape[1], dtype=jnp.int32)[None, :]
    return jnp.take_along_axis(x, of_block[:, :, None], axis=1), cache


def joined(
    rows: Float[Array, "B T *D"], following: Float[Array, "B U *D"], num_kept: Int[Array, "B"]
) -> Float[Array, "B TU *D"]:
    """The first `num_kept` rows and those that follow them, in one run of T + U; what is left is the last row again.

    Example: rows a b c, of which two are kept, followed by x y -> a b x y y.
    """
    num_rows, num_following = rows.shape[1], following.shape[1]
    index, kept = jnp.arange(num_rows + num_following, dtype=jnp.int32)[None, :], num_kept[:, None]
    source = jnp.where(index < kept, index, num_rows + jnp.minimum(index - kept, num_following - 1))
    both = jnp.concatenate([rows, following], axis=1)
    return jnp.take_along_axis(both, jnp.expand_dims(source, range(2, both.ndim)), axis=1)


def run_blocks(
    layers: Sequence[DecoderLayer],
    kinds: Sequence[LayerKind],
    x: Float[Array, "B R T D"],
    cache: KVCache,
    start: Int[Array, "B R"],
    first: int,
) -> Float[Array, "B R T D"]:
    """Runs R causal blocks of T rows per request; block r stands at `start` and sees the cache slots below it.

    Nothing is written: the blocks' keys live in this call only.
    """
    batch, blocks, rows, width = x.shape
    flat = x.reshape(batch, -1, width)
    positions = block_positions(start, rows).reshape(batch, -1)
    for index, (layer, kind) in enumerate(zip(layers, kinds, strict=True), start=first):
        angles = rope_angles(positions, kind.rope, layer.attention.shape.head_dim)
        q, k, v = layer.queries_keys_values(flat, angles, kind.rope)
        heads = attend_blocks(
            q.reshape(batch, blocks, rows, *q.shape[2:]),
            cache.keys[index],
            cache.values[index],
            start,
            own_rows(k, blocks),
            own_rows(v, blocks, is_value=True),
            jnp.broadcast_to(_causal(rows, kind.window), (batch, blocks, rows, rows)),
            window=kind.window,
        )
        flat = layer.finish(flat, heads.reshape(batch, -1, *heads.shape[3:]))
    return flat.reshape(x.shape)


def block_positions(start: Int[Array, "B R"], num_rows: int) -> Int[Array, "B R T"]:
    """Absolute positions of the rows of each block."""
    return start[:, :, None] + jnp.arange(num_rows, dtype=jnp.int32)[None, None, :]


def own_rows(rows: Float[Array, "B RT K H"], num_blocks: int, *, is_value: bool = False) -> Float[Array, "B R K T H"]:
    """Keys or values of all rows as each block's own, a head's rows contiguous as in the cache."""
    batch, _, heads, size = rows.shape
    rows = jnp.swapaxes(rows.reshape(batch, num_blocks, -1, heads, size), 2, 3)
    # As in the cache: a masked value has weight 0, and 0 * NaN is NaN.
    return jnp.nan_to_num(rows) if is_value else rows


def _causal(num_rows: int, window: int | None) -> Bool[Array, "1 1 T T"]:
    query = jnp.arange(num_rows, dtype=jnp.int32)[None, None, :, None]
    key = jnp.arange(num_rows, dtype=jnp.int32)[None, None, None, :]
    return key <= query if window is None else (key <= query) & (key > query - window)


def cache_for(layers: Sequence[Any], batch: int, capacity: int) -> KVCache:
    """An empty cache for these layers."""
    shape = layers[0].attention.shape
    return KVCache.zeros(
        num_layers=len(layers),
        batch=batch,
        capacity=capacity,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=layers[0].attention_norm.scale[...].dtype,
    )
