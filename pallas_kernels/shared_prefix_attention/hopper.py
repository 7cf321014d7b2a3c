"""Attention of blocks that share a context, Mosaic GPU for Hopper: split over the context, merged by log-sum-exp.

The R blocks and the G query heads of a kv head are rows of one product (`rows.py`), so a head's context leaves memory
once. A block of the grid takes 64 rows a warpgroup and one split of the context; one more split is the own keys. Splits
are cut from the longest context in use, not from the capacity.

* Moved: keys and values of the context, 2 B K len H elements; Qwen3-8B, 1024 slots, bf16: 4.2 MB, 1.1 us at 3.8 TB/s.
  Beside them the parts, (splits + 1) B K rows (H + 2) fp32, written and read once, mostly within L2: 8.5 MB for the
  128 rows of a verification and 16 parts. Where rows need several blocks, the later ones find the context in L2.
* FLOPs: 4 B K rows len H; 0.54 GFLOP for those 128 rows, 1 us of the tensor cores.
* Grid: (row tiles / warpgroups, splits + 1, B K), about one block a core.
* Shared memory: 64 H queries and 64 slots weights a warpgroup, 2 slots H keys and values a stage. Qwen3-8B: 88 KB with
  one warpgroup and two stages, two blocks a core; 176 KB with two warpgroups and four stages.
* Limits: Hopper (wgmma); bf16 or fp16; H 64 or 128; no window; at most 64 own keys; S a multiple of `slots`.
"""

from functools import partial
from math import e, log2
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.shared_prefix_attention.config import MIN_SLOTS, SharedPrefixConfig
from pallas_kernels.shared_prefix_attention.parts import Parts
from pallas_kernels.shared_prefix_attention.rows import PIECE_ROWS, TILE_ROWS, RowTiles

OWN_SLOTS = MIN_SLOTS
# Below every score. Finite: a row that saw no key yet then has exp2(-inf - FLOOR) = 0 as weights, never a NaN.
FLOOR = -1e30
Ref = Any  # a reference to memory, or a part or view of one
HOPPER = ("H100", "H200", "H800", "H20")  # parts of device kinds
PER_ROW = plgpu.Layout.WGMMA.reduce(1)
# As wgmma has its fragments, 8 x 8 elements at a time: shared memory takes them without bank conflicts.
PER_PIECE = plgpu.Layout.TILED(
    plgpu.Tiling(((PIECE_ROWS, 64), (16,), (8,), (2,))), warp_dims=(-4,), lane_dims=(-5, -2), vector_dim=-1
)


def shared_prefix_attention(
    q: Float[Array, "B R T N H"],
    context_keys: Float[Array, "B K S H"],
    context_values: Float[Array, "B K S H"],
    context_len: Int[Array, "B R"],
    own_keys: Float[Array, "B R K U H"],
    own_values: Float[Array, "B R K U H"],
    own_mask: Bool[Array, "B R T U"],
    *,
    window: int | None = None,
    config: SharedPrefixConfig | None = None,
) -> Float[Array, "B R T N H"]:
    """Attention of R blocks over the context they share and over keys of their own; see `reference.py`.

    Rows of `own_keys` are read where they lie if the caller swapped them there from [B, R, U, K, H]. U is padded, by a
    kernel of XLA's, if it is over 8 and no multiple of 8.

    Args:
        config: None for the default.

    Raises:
        NotImplementedError: outside the limits above.
    """
    batch, blocks, rows, num_heads, head_dim = q.shape
    kv_heads, capacity = context_keys.shape[1:3]
    num_own = own_keys.shape[3]
    if num_own > OWN_SLOTS:
        raise NotImplementedError(f"at most {OWN_SLOTS} own keys, got U={num_own}")
    if window is not None:
        raise NotImplementedError(f"no sliding windows, got window={window}")
    tiles = RowTiles(blocks, rows, num_heads // kv_heads)
    config = config or SharedPrefixConfig.for_shape(tiles, batch * kv_heads, capacity, has_own=True)
    _check_limits(q, context_keys, context_values, own_keys, own_values, tiles=tiles, config=config)

    def natural(own: Float[Array, "B R K U H"]) -> Float[Array, "BR slots K H"]:
        own = jnp.swapaxes(own, 2, 3).reshape(-1, num_own, kv_heads, head_dim)
        ragged = -num_own % PIECE_ROWS if num_own > PIECE_ROWS else 0
        return jnp.pad(own, [(0, 0), (0, ragged), (0, 0), (0, 0)]) if ragged else own

    mask = jnp.pad(own_mask, [(0, 0), (0, 0), (0, 0), (0, OWN_SLOTS - num_own)])
    own = natural(own_keys), natural(own_values), tiles.spread(mask.astype(jnp.float32))
    lengths = jnp.broadcast_to(context_len[:, :, None], (batch, blocks, rows))
    parts = _attend_in_parts(q, context_keys, context_values, lengths, own, tiles=tiles, config=config)
    return parts.merged(tiles).reshape(q.shape).astype(q.dtype)


def cache_attention(
    q: Float[Array, "B T N H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    visible_len: Int[Array, "B T"],
    *,
    config: SharedPrefixConfig | None = None,
) -> Float[Array, "B T N H"]:
    """Attention over a cache that the rows' own keys were written to: row t sees the slots below `visible_len[t]`.

    What `shared_prefix_attention` does for one causal block, without its own part: verification and decoding.

    Args:
        visible_len: at least 1.
        config: None for the default.

    Raises:
        NotImplementedError: outside the limits above.
    """
    batch, rows, num_heads, _ = q.shape
    kv_heads, capacity = keys.shape[1:3]
    tiles = RowTiles(1, rows, num_heads // kv_heads)
    config = config or SharedPrefixConfig.for_shape(tiles, batch * kv_heads, capacity, has_own=False)
    _check_limits(q, keys, values, tiles=tiles, config=config)
    parts = _attend_in_parts(q[:, None], keys, values, visible_len[:, None], None, tiles=tiles, config=config)
    return parts.merged(tiles).reshape(q.shape).astype(q.dtype)


def _check_limits(*arrays: Float[Array, "..."], tiles: RowTiles, config: SharedPrefixConfig) -> None:
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
    if not any(name in device.device_kind for name in HOPPER):
        raise NotImplementedError(f"needs a Hopper GPU for wgmma, got {device.device_kind}")
    dtypes = {x.dtype for x in arrays}
    if len(dtypes) > 1 or not dtypes <= {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)}:
        raise NotImplementedError(f"all arrays must be bf16 or all fp16, got {sorted(map(str, dtypes))}")
    kv_heads, capacity, head_dim = arrays[1].shape[1:]
    if head_dim not in (64, 128):
        raise NotImplementedError(f"H must be 64 or 128, got {head_dim}")
    if arrays[0].shape[-2] % kv_heads:
        raise NotImplementedError(f"N must be a multiple of K, got {arrays[0].shape[-2]} and {kv_heads}")
    if capacity % config.slots:
        raise NotImplementedError(f"S={capacity} is no multiple of the {config.slots} slots of a step")
    if tiles.num_tiles % config.warpgroups:
        raise NotImplementedError(f"{tiles.num_tiles} row tiles are no multiple of {config.warpgroups} warpgroups")


class _Softmax(NamedTuple):
    """A running softmax of 64 rows; `top` is in base 2."""

    top: Float[Array, "rows"]
    total: Float[Array, "rows"]
    out: Float[Array, "rows H"]

    @classmethod
    def empty(cls, head_dim: int) -> "_Softmax":
        return cls(
            plgpu.layout_cast(jnp.full((TILE_ROWS,), FLOOR, jnp.float32), PER_ROW),
            plgpu.layout_cast(jnp.zeros((TILE_ROWS,), jnp.float32), PER_ROW),
            plgpu.layout_cast(jnp.zeros((TILE_ROWS, head_dim), jnp.float32), plgpu.Layout.WGMMA),
        )


class _Stage(NamedTuple):
    """Keys and values in shared memory, [slots, H] each, and the barriers that tell when they are there."""

    keys: Ref
    values: Ref
    keys_ready: Ref
    values_ready: Ref

    def load(self, keys_source: Ref, values_source: Ref) -> None:
        plgpu.copy_gmem_to_smem(keys_source, self.keys, self.keys_ready)
        plgpu.copy_gmem_to_smem(values_source, self.values, self.values_ready)


def _over_columns(x: Shaped[Array, "rows"], width: int) -> Shaped[Array, "rows width"]:
    return lax.broadcast_in_dim(x, (TILE_ROWS, width), [0])


def _product(a: Ref, b: Ref) -> Float[Array, "rows columns"]:
    """`a @ b` of references in shared memory, fp32."""

    def run(acc):
        plgpu.wgmma(acc, a, b)
        return acc[...]

    return pl.run_scoped(run, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))


def _add_keys(softmax: _Softmax, queries: Ref, weights_tile: Ref, stage: _Stage, visible: Array) -> _Softmax:
    """Adds the keys of a stage to the softmax.

    Args:
        queries: [rows, H].
        weights_tile: [rows, slots], scratch.
        visible: [rows, slots], which of them each row sees.
    """
    slots, head_dim = stage.keys.shape
    scale = head_dim**-0.5 * log2(e)
    plgpu.barrier_wait(stage.keys_ready)
    scores = jnp.where(visible, _product(queries, stage.keys.T), -jnp.inf)
    top = jnp.maximum(softmax.top, scores.max(axis=1) * scale)
    weights = jnp.exp2(scores * scale - _over_columns(top, slots))
    shrink = jnp.exp2(softmax.top - top)
    # Through shared memory, not as registers: the interpreter knows wgmma of references only.
    weights_tile[...] = weights.astype(weights_tile.dtype)
    plgpu.commit_smem()
    plgpu.barrier_wait(stage.values_ready)
    out = softmax.out * _over_columns(shrink, head_dim) + _product(weights_tile, stage.values)
    return _Softmax(top, softmax.total * shrink + weights.sum(axis=1), out)


def _load_queries(
    q_ref: Ref, block: Array, kv_head: Array, tile: Array, tiles: RowTiles, queries: Ref, ready: Ref
) -> None:
    """Loads the rows of a tile, [rows, H], and waits for them.

    Args:
        q_ref: [B R, T, N, H].
        tile: among those of the block.
    """
    first = tile * (TILE_ROWS // PIECE_ROWS)
    for i in range(TILE_ROWS // PIECE_ROWS):
        # Pieces that fill up the block repeat its last head.
        group = jnp.minimum(lax.div(first + i, tiles.head_pieces), tiles.num_groups - 1)
        position = lax.rem(first + i, tiles.head_pieces) * PIECE_ROWS
        if tiles.is_ragged:
            position = jnp.minimum(position, tiles.num_rows - PIECE_ROWS)
        source = q_ref.at[block, pl.ds(position, PIECE_ROWS), kv_head * tiles.num_groups + group]
        piece = queries.at[pl.ds(i * PIECE_ROWS, PIECE_ROWS)]
        if tiles.is_ragged:  # TMA reads from multiples of 8 only
            piece[...] = plgpu.load(source, layout=PER_PIECE, optimized=False)
        else:  # if T < 8, it fills with zeros
            plgpu.copy_gmem_to_smem(source, piece, ready)
    if tiles.is_ragged:
        plgpu.commit_smem()
    else:
        plgpu.barrier_wait(ready)


@partial(jax.jit, static_argnames=("tiles", "config"))  # a program with many layers lowers each shape once
def _attend_in_parts(
    q: Float[Array, "B R T N H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    visible_len: Int[Array, "B R T"],
    own: tuple[Float[Array, "BR U K H"], Float[Array, "BR U K H"], Float[Array, "B tile_rows slots"]] | None,
    tiles: RowTiles,
    config: SharedPrefixConfig,
) -> Parts:
    """Launches the kernel.

    Args:
        visible_len: how many context slots each position sees.
        own: keys, values, and which of them each row sees (positive).
    """
    batch, kv_heads, capacity, head_dim = keys.shape
    num_groups = tiles.num_tiles // config.warpgroups
    visible_len = tiles.spread(jnp.minimum(visible_len, capacity))
    longest = visible_len.reshape(batch, num_groups, -1).max(axis=-1)
    per_row = batch, kv_heads, config.num_splits + (own is not None), tiles.num_tiles * TILE_ROWS

    def tiled(*shape):
        transforms = plgpu.TilingTransform((PIECE_ROWS, 64)), plgpu.SwizzleTransform(128)
        return plgpu.SMEM(shape, q.dtype, transforms=transforms)

    call = plgpu.kernel(
        partial(_kernel, tiles=tiles, config=config),
        out_type=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((*per_row, head_dim), per_row, per_row)],
        scratch_types={
            "queries": tiled(config.warpgroups, TILE_ROWS, head_dim),
            "weights": tiled(config.warpgroups, TILE_ROWS, config.slots),
            "keys": tiled(config.stages, config.slots, head_dim),
            "values": tiled(config.stages, config.slots, head_dim),
            "queries_ready": plgpu.Barrier(num_arrivals=TILE_ROWS // PIECE_ROWS, num_barriers=config.warpgroups),
            "keys_ready": plgpu.Barrier(num_barriers=config.stages),
            "values_ready": plgpu.Barrier(num_barriers=config.stages),
            "released": plgpu.Barrier(num_arrivals=config.warpgroups, num_barriers=config.stages),
        },
        grid=(num_groups, per_row[2], batch * kv_heads),
        grid_names=("group", "split", "head"),
        num_threads=config.warpgroups,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="shared_prefix_attention",
    )
    return Parts(*call(q.reshape(-1, *q.shape[2:]), keys, values, visible_len, longest, own))


def _kernel(
    q_ref: Ref,
    keys_ref: Ref,
    values_ref: Ref,
    len_ref: Ref,
    longest_ref: Ref,
    own_refs: tuple[Ref, Ref, Ref] | None,
    *part_refs: Ref,
    tiles: RowTiles,
    config: SharedPrefixConfig,
    queries: Ref,
    weights: Ref,
    queries_ready: Ref,
    released: Ref,
    **stages: Ref,
) -> None:
    """What one warpgroup does: a tile of rows, one split of the context or the own keys."""
    group, split, head, warpgroup = (lax.axis_index(name) for name in ("group", "split", "head", "warpgroup"))
    kv_heads, _, head_dim = keys_ref.shape[1:]
    b, kv_head = lax.div(head, kv_heads), lax.rem(head, kv_heads)
    tile = group * config.warpgroups + warpgroup
    block = b * tiles.num_blocks + lax.div(tile, tiles.tiles_per_block)
    rows = pl.ds(tile * TILE_ROWS, TILE_ROWS)
    queries, weights, queries_ready = (x.at[warpgroup] for x in (queries, weights, queries_ready))

    def load_queries():
        _load_queries(q_ref, block, kv_head, lax.rem(tile, tiles.tiles_per_block), tiles, queries, queries_ready)

    def stage_at(i):
        return _Stage(**{name: ref.at[i] for name, ref in stages.items()})

    def write(softmax):
        for ref, x in zip(part_refs, (softmax.out, softmax.top, softmax.total), strict=True):
            ref[b, kv_head, split, rows] = x

    @pl.when(split < config.num_splits)
    def _context():
        num_steps = pl.cdiv(longest_ref[b, group], config.slots)
        begin, end = (lax.div((split + i) * num_steps, config.num_splits) for i in (0, 1))

        def load(step):
            where = b, kv_head, pl.ds(step * config.slots, config.slots)
            stage_at(lax.rem(step - begin, config.stages)).load(keys_ref.at[where], values_ref.at[where])

        for i in range(config.stages):
            pl.when((warpgroup == 0) & (begin + i < end))(partial(load, begin + i))
        load_queries()
        lengths = plgpu.load(len_ref.at[b, rows], layout=PER_ROW, optimized=False)

        def add_step(step, softmax):
            stage = lax.rem(step - begin, config.stages)
            shape = TILE_ROWS, config.slots
            slot = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=plgpu.Layout.WGMMA) + step * config.slots
            visible = slot < _over_columns(lengths, config.slots)
            softmax = _add_keys(softmax, queries, weights, stage_at(stage), visible)

            @pl.when(step + config.stages < end)
            def _refill():
                plgpu.barrier_arrive(released.at[stage])

                @pl.when(warpgroup == 0)
                def _():
                    plgpu.barrier_wait(released.at[stage])
                    load(step + config.stages)

            return softmax

        write(lax.fori_loop(begin, end, add_step, _Softmax.empty(head_dim)))

    if own_refs is None:
        return

    @pl.when(split == config.num_splits)
    def _own():
        own_keys_ref, own_values_ref, visible_ref = own_refs
        stage = stage_at(warpgroup)
        stage = stage._replace(keys=stage.keys.at[:OWN_SLOTS], values=stage.values.at[:OWN_SLOTS])
        # TMA fills with zeros beyond U. The start is 0, but a start known now would be refused for reaching beyond.
        where = block, pl.ds((split - config.num_splits) * OWN_SLOTS, OWN_SLOTS), kv_head
        stage.load(own_keys_ref.at[where], own_values_ref.at[where])
        load_queries()
        visible = plgpu.load(visible_ref.at[b, rows], layout=plgpu.Layout.WGMMA, optimized=False) > 0
        write(_add_keys(_Softmax.empty(head_dim), queries, weights.at[:, :OWN_SLOTS], stage, visible))
