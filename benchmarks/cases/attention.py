"""Attention over a cache, with and without keys of the rows' own."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from benchmarks.cases.case import Case, normal
from benchmarks.chains import Inputs
from jetspec_jax.ops.attention import attend_blocks, attend_cached
from pallas_kernels.shared_prefix_attention import (
    SharedPrefixConfig,
    cache_attention,
    reference,
    shared_prefix_attention,
)
from pallas_kernels.shared_prefix_attention.rows import RowTiles
from pallas_kernels.shared_prefix_attention.shapes import SHAPES, Blocks

BF16 = jnp.dtype(jnp.bfloat16)


def case(name: str, shape: Blocks, context_len: int) -> Case:
    """Rows behind `context_len` tokens; lengths and masks are shared by all calls, as layers share them."""
    make, forms = (_with_own_keys if shape.num_own else _cached)(shape, context_len)
    seen = context_len if shape.num_own else context_len + shape.num_rows
    return Case(
        name=f"{name}@{context_len}",
        **forms,
        make=make,
        num_bytes=shape.bytes_moved(seen),
        configs=lambda: _configs(shape),
    )


def _cached(shape: Blocks, context_len: int):
    """Row t stands at `context_len + t` and sees up to itself."""

    def make(key) -> Inputs:
        q, keys, values, lengths = shape.arguments(BF16)
        visible = context_len + jnp.arange(1, 1 + shape.num_rows, dtype=jnp.int32)
        return Inputs(_drawn(key, (q, keys, values)), (jnp.broadcast_to(visible[None, :], lengths.shape),))

    return make, {
        "kernel": lambda *arrays, config=None: (cache_attention(*arrays, config=config), ()),
        "xla": lambda q, keys, values, visible: (attend_cached(q, keys, values, visible - 1), ()),
        "reference": lambda *arrays: (reference.cache_attention(*arrays), ()),
    }


def _with_own_keys(shape: Blocks, context_len: int):
    """Blocks whose last T own keys are those of their rows, seen up to the row itself; what is before them, by all."""

    def make(key) -> Inputs:
        q, context_keys, context_values, lengths, own_keys, own_values, mask = shape.arguments(BF16)
        drawn = _drawn(key, (q, context_keys, context_values, own_keys, own_values))
        causal = jnp.tri(shape.num_rows, shape.num_own, shape.num_own - shape.num_rows, dtype=jnp.bool)
        own_mask = jnp.broadcast_to(causal[None, None], mask.shape)
        return Inputs(drawn, (jnp.full(lengths.shape, context_len, jnp.int32), own_mask))

    def in_order(function, **options):
        def form(q, context_keys, context_values, own_keys, own_values, context_len, own_mask):
            arrays = (q, context_keys, context_values, context_len, own_keys, own_values, own_mask)
            return function(*arrays, **options), ()

        return form

    return make, {
        "kernel": lambda *arrays, config=None: in_order(shared_prefix_attention, config=config)(*arrays),
        "xla": in_order(attend_blocks),
        "reference": in_order(reference.shared_prefix_attention),
    }


def _drawn(key, arrays) -> tuple:
    return tuple(
        normal(one, *array.shape) for one, array in zip(jax.random.split(key, len(arrays)), arrays, strict=True)
    )


def _configs(shape: Blocks) -> list[SharedPrefixConfig]:
    """The default and others: longer steps, more of them, one or two row tiles a block of the grid, other splits."""
    tiles = RowTiles(shape.num_blocks, shape.num_rows, shape.num_heads // shape.num_kv_heads)
    heads = shape.batch * shape.num_kv_heads
    default = SharedPrefixConfig.for_shape(tiles, heads, shape.capacity, has_own=shape.num_own > 0)
    tried = [default]
    for warpgroups in (1, 2):
        blocks = heads * tiles.num_tiles // warpgroups
        for slots in (64, 128):
            for stages in (2, 3, 4):
                for blocks_per_core in (0.5, 1, 2):
                    num_splits = max(round(132 * blocks_per_core / blocks), 1)
                    sizes = {"slots": slots, "stages": max(stages, warpgroups), "warpgroups": warpgroups}
                    tried.append(replace(default, num_splits=num_splits, **sizes))
    return [config for config in dict.fromkeys(tried) if tiles.num_tiles % config.warpgroups == 0]


__all__ = ["SHAPES", "case"]
