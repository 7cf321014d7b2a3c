"""Matrix product of few rows, Mosaic GPU for sm_90a: the weight is streamed once, everything else is fused around it.

Operands are swapped: outputs are M of a wgmma, rows of x are N, so 8 rows cost what they weigh. One warpgroup of a CTA
loads (TMA, `stages` deep), one or two multiply, and with a norm one more scales the tiles of x where they lie and sums
their squares; 1 / rms, which is a row's own, multiplies the sums at the end. int8 weights, which are stored in
fragment order, become bf16 in registers; fp8 weights are multiplied as they are, with fp8 rows.

* Moved: the weight once; Qwen3-8B, 17 rows, bf16: gate and up 201 MB, 48 us at 4.2 TB/s, down 101 MB, qkv 50 MB, output
  34 MB. x is read by every CTA from the second-level cache: `T I 2` bytes times CTAs, divided by `split_k * cluster`.
* FLOPs: 2 T O I, and 64 / block_rows times as many are executed.
* Grid: `O / (block_rows * warpgroups) * split_k` CTAs in clusters of `cluster`, or `max_ctas`.
* SMEM per stage: `64 * warpgroups * tile_k` of the weight (twice that with SwiGLU), `T * tile_k * 2` bytes of x.
* Limits: `Plan.check`; x is bf16, or fp8 with an fp8 weight. Blackwell has no wgmma: there and on a CPU it refuses.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int8

from pallas_kernels.fragments import load_fragments
from pallas_kernels.skinny_matmul.config import SkinnyMatmulConfig
from pallas_kernels.skinny_matmul.plan import CHUNK, WGMMA_ROWS, Plan
from pallas_kernels.skinny_matmul.product import Product
from pallas_kernels.skinny_matmul.tuning import default_config

HOPPER = ("H100", "H200", "GH200")
MAX_BOX = 256  # elements of a TMA box in each direction
SUMS, TRANSPOSED = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA_TRANSPOSED


def skinny_matmul(
    x: Float[Array, "T I"],
    weight: Float[Array, "O I"] | Int8[Array, "O I"],
    *,
    scale: Float[Array, "O"] | None = None,
    norm: tuple[Float[Array, " I"], float] | None = None,
    residual: Float[Array, "T out"] | None = None,
    swiglu: bool = False,
    out_dtype: DTypeLike | None = None,
    next_weight: Float[Array, "O2 I2"] | Int8[Array, "O2 I2"] | None = None,
    config: SkinnyMatmulConfig | None = None,
) -> Float[Array, "T out"]:
    """`residual + act((norm(x) W^T) * scale)` in one launch, accumulated in fp32; arguments as in `reference.py`.

    The norm's scale multiplies x in bf16 and 1 / rms the fp32 sums, where the reference rounds both together: results
    differ by the rounding of bf16. More than 8 rows are padded to a multiple of `8 * cluster` here, which costs small
    copies before and after; whoever pads the rows of a whole decode step once has none.

    Args:
        next_weight: what the next product will read; its first columns are fetched into the second-level cache.
        config: tiles; chosen by the shape unless given.

    Raises:
        NotImplementedError: outside the limits above.
    """
    num_cores = _num_cores()
    out_dtype = jnp.dtype(out_dtype or x.dtype)
    wanted = jnp.dtype(jnp.float8_e4m3fn if weight.dtype == jnp.float8_e4m3fn else jnp.bfloat16)
    if x.dtype != wanted or (residual is not None and residual.dtype != out_dtype):
        dtypes = f"x {x.dtype}, residual {None if residual is None else residual.dtype}, result {out_dtype}"
        raise NotImplementedError(f"x must be {wanted} and the residual of the result's dtype, got {dtypes}")
    norm_scale, norm_eps = norm or (None, None)
    product = Product(
        num_rows=x.shape[0],
        num_inputs=x.shape[1],
        num_outputs=weight.shape[0],
        weight_dtype=weight.dtype.name,
        out_dtype=out_dtype.name,
        norm_eps=norm_eps,
        has_scale=scale is not None,
        has_residual=residual is not None,
        is_swiglu=swiglu,
    )
    plan = Plan(product, config or default_config(product, num_cores))
    plan.check()
    y = _launch(plan, x, weight, scale, norm_scale, residual, next_weight)
    return _finish(y, x, scale, residual, product) if plan.is_partial else y


def _num_cores() -> int:
    """SMs of the device, which must be a Hopper."""
    described = jax.sharding.get_abstract_mesh().abstract_device
    device = described if described is not None else jax.devices()[0]
    if not any(name in device.device_kind for name in HOPPER):
        raise NotImplementedError(f"wgmma is Hopper's ({', '.join(HOPPER)}), this is {device.device_kind!r}")
    return device.core_count if described is None else device.num_cores


def _finish(partials: Float[Array, "splits T O"], x, scale, residual, product: Product):
    """What the kernel fuses unless the inputs are split."""
    y = jnp.sum(partials, axis=0)
    if product.has_norm:
        wide = x.astype(jnp.float32)
        y = y * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + product.norm_eps)
    if scale is not None:
        y = y * scale[None, :].astype(jnp.float32)
    if product.is_swiglu:
        gate, up = jnp.split(y, 2, axis=-1)
        y = jax.nn.silu(gate) * up
    if residual is not None:
        y = y + residual.astype(jnp.float32)
    return y.astype(product.out_dtype)


@partial(jax.jit, static_argnums=0)  # a program with many layers traces and lowers each shape once
def _launch(plan: Plan, x, weight, scale, norm_scale, residual, next_weight):
    """Runs the grid: [T, width], or partial sums [split_k, T, O]."""
    config, num_rows = plan.config, x.shape[0]
    blocks = (plan.given_rows, plan.num_blocks, config.block_rows)

    def padded(rows):
        return jnp.pad(rows, ((0, plan.given_rows - num_rows), (0, 0))) if plan.is_padded else rows

    operands = {"x": padded(x), "weight": weight}
    if norm_scale is not None:
        operands["norm_scale"] = norm_scale.astype(x.dtype).reshape(-1, CHUNK)
    if plan.fuses_scale:
        operands["scale"] = scale.reshape(-1, config.block_rows)
    if plan.fuses_residual:
        operands["residual"] = padded(residual).reshape(blocks)
    if next_weight is not None:
        operands["next_weight"] = next_weight
    roles = [_load] + [_scale_rows] * plan.product.has_norm

    def skinny_matmul_kernel(*args, **scratch):
        refs = SimpleNamespace(**dict(zip([*operands, "out"], args, strict=True)), **scratch)
        wg = lax.axis_index("wg")
        pl.when(wg < config.warpgroups)(lambda: _multiply(plan, refs))
        for i, role in enumerate(roles):
            pl.when(wg == config.warpgroups + i)(partial(role, plan, refs))

    y = plgpu.kernel(
        skinny_matmul_kernel,
        out_type=jax.ShapeDtypeStruct((config.split_k, *blocks) if plan.is_partial else blocks, plan.out_dtype),
        scratch_types=_scratch(plan, weight.dtype, scale),
        grid=(plan.num_clusters,),
        grid_names=("group",),
        cluster=(config.cluster,),
        cluster_names=("member",),
        num_threads=plan.num_threads,
        thread_name="wg",
    )(*operands.values())
    y = y.reshape(*y.shape[:-2], -1)
    return y[..., :num_rows, :] if plan.is_padded else y


def _scratch(plan: Plan, weight_dtype, scale) -> dict:
    config, rows, stages = plan.config, plan.num_rows, plan.stages
    weight_tiles = (stages, config.warpgroups, plan.halves, WGMMA_ROWS, config.tile_k)
    x_dtype = jnp.dtype(plan.product.x_dtype)
    # int8 is multiplied in chunks.
    width = CHUNK if weight_dtype == jnp.int8 else config.tile_k
    free = partial(plgpu.Barrier, num_barriers=stages, num_arrivals=config.warpgroups)
    if config.cluster > 1:  # a slot takes what any member multicasts, so all of them must have left it
        free = partial(plgpu.ClusterBarrier, **free.keywords, collective_axes=("member",))
    # A store beyond the block's outputs is cut off, which needs tiles that divide them.
    out_tile = CHUNK if plan.out_dtype.itemsize == 2 else _largest_divisor(config.block_rows, (32, 16, 8))
    scratch = {
        "w_tiles": plgpu.SMEM(weight_tiles, weight_dtype, transforms=_swizzled(width, weight_dtype)),
        "x_tiles": plgpu.SMEM((stages, rows, config.tile_k), x_dtype, transforms=_swizzled(width, x_dtype)),
        "out_tiles": plgpu.SMEM(
            (config.warpgroups, rows, WGMMA_ROWS), plan.out_dtype, transforms=_swizzled(out_tile, plan.out_dtype)
        ),
        "w_full": plgpu.Barrier(num_barriers=stages, num_arrivals=config.warpgroups * plan.halves),
        "x_full": plgpu.Barrier(num_barriers=stages),
        "free": free(),
    }
    if plan.num_side_loads:
        scratch["sides"] = plgpu.Barrier(num_barriers=config.warpgroups, num_arrivals=plan.num_side_loads)
    if plan.fuses_scale:
        scratch["scale_tiles"] = plgpu.SMEM((config.warpgroups, plan.halves, WGMMA_ROWS), scale.dtype)
    if plan.product.has_norm:
        scratch |= {
            "norm_scales": plgpu.SMEM((plan.product.num_inputs // CHUNK, CHUNK), jnp.bfloat16),
            "row_factors": plgpu.SMEM((rows,), jnp.float32),
            "norm_full": plgpu.Barrier(),
            "x_scaled": plgpu.Barrier(num_barriers=stages),
            "factors_full": plgpu.Barrier(),
        }
    return scratch


def _from_zero(size: int) -> pl.Slice:
    """A slice that may reach beyond its array: TMA reads zeros there and writes nothing.

    Its start is not a Python number because a slice that is known to be too long is refused.
    """
    return pl.ds(lax.axis_index("group") * 0, size)


def _largest_divisor(number: int, divisors: tuple[int, ...]) -> int:
    return next(divisor for divisor in divisors if number % divisor == 0)


def _swizzled(width: int, dtype) -> tuple:
    """Transforms of a tile whose rows have `width` elements or a multiple, as wgmma and TMA want it."""
    size = jnp.dtype(dtype).itemsize
    swizzle = _largest_divisor(width * size, (128, 64, 32))
    return plgpu.TilingTransform((8, swizzle // size)), plgpu.SwizzleTransform(swizzle)


def _num_rounds(plan: Plan):
    """Work items of this CTA."""
    if plan.num_items % plan.num_clusters == 0:
        return plan.num_items // plan.num_clusters
    return lax.div(plan.num_items - 1 - lax.axis_index("group"), plan.num_clusters) + 1


def _place(plan: Plan, step):
    """Tile of outputs and tile of inputs at a step of this CTA, counted over all its rounds."""
    item = lax.axis_index("group") + lax.div(step, plan.steps) * plan.num_clusters
    tile = lax.div(item, plan.config.split_k) * plan.config.cluster + lax.axis_index("member")
    return tile, lax.rem(item, plan.config.split_k) * plan.steps + lax.rem(step, plan.steps)


def _load_weight(plan: Plan, refs, step, slot) -> None:
    """The weight's tiles of a step: one for each warpgroup, and one of up if the kernel does SwiGLU."""
    config, (tile, k) = plan.config, _place(plan, step)
    inputs = pl.ds(k * config.tile_k, config.tile_k)
    for wg in range(config.warpgroups):
        for half in range(plan.halves):
            block = half * plan.num_blocks + tile * config.warpgroups + wg
            outputs = pl.ds(block * config.block_rows, config.block_rows)
            w_tile = refs.w_tiles.at[slot, wg, half, pl.ds(0, config.block_rows)]
            plgpu.copy_gmem_to_smem(refs.weight.at[outputs, inputs], w_tile, refs.w_full.at[slot])


def _load_x(plan: Plan, refs, step, slot) -> None:
    """The tile of x of a step; each member of a cluster loads its share for all."""
    config, (_, k) = plan.config, _place(plan, step)
    x = refs.x.at[_from_zero(plan.num_rows), pl.ds(k * config.tile_k, config.tile_k)]
    shared_by = "member" if config.cluster > 1 else None
    plgpu.copy_gmem_to_smem(x, refs.x_tiles.at[slot], refs.x_full.at[slot], collective_axes=shared_by)


def _load(plan: Plan, refs) -> None:
    """The loading warpgroup: weights and x in order of need, as far ahead as slots are free."""
    total = _num_rounds(plan) * plan.steps
    if plan.registers:
        plgpu.set_max_registers(plan.registers[0], action="decrease")
    if plan.config.dependent_launch:  # the weight does not depend on the kernel before
        for slot in range(plan.stages):
            _load_weight(plan, refs, jnp.int32(slot), slot)
        plgpu.griddepcontrol_launch_dependents()
        plgpu.griddepcontrol_wait()
    if plan.product.has_norm:
        plgpu.copy_gmem_to_smem(refs.norm_scale, refs.norm_scales, refs.norm_full)
    for slot in range(plan.stages):
        # x first: behind the weights of all stages it would arrive when they are all there, microseconds later.
        _load_x(plan, refs, jnp.int32(slot), slot)
        if not plan.config.dependent_launch:
            _load_weight(plan, refs, jnp.int32(slot), slot)

    @pl.loop(plan.stages, total)
    def _load_next(step):
        slot = lax.rem(step, plan.stages)
        plgpu.barrier_wait(refs.free.at[slot])
        _load_weight(plan, refs, step, slot)
        _load_x(plan, refs, step, slot)

    if hasattr(refs, "next_weight"):
        _prefetch(plan, refs.next_weight)

    @pl.loop(total - plan.stages, total)  # members of a cluster may signal until then
    def _drain(step):
        plgpu.barrier_wait(refs.free.at[lax.rem(step, plan.stages)])


def _prefetch(plan: Plan, weight) -> None:
    """This CTA's share of the first columns of another weight, into the second-level cache."""
    cta = lax.axis_index("group") * plan.config.cluster + lax.axis_index("member")
    share = pl.cdiv(weight.shape[0], plan.num_clusters * plan.config.cluster)
    width = min(plan.config.prefetch_len, weight.shape[1])
    for row in range(0, share, MAX_BOX):
        rows = pl.ds(cta * share + row, min(MAX_BOX, share - row))
        for column in range(0, width, MAX_BOX):
            plgpu.async_prefetch(weight.at[rows, pl.ds(column, min(MAX_BOX, width - column))])


def _scale_rows(plan: Plan, refs) -> None:
    """The warpgroup of the norm: multiplies the tiles of x by its scale, in place, and finds 1 / rms of each row."""
    config, product = plan.config, plan.product
    if plan.registers:
        plgpu.set_max_registers(plan.registers[1], action="decrease")
    plgpu.barrier_wait(refs.norm_full)

    def scale(step, squares):
        slot, (_, k) = lax.rem(step, plan.stages), _place(plan, step)
        plgpu.barrier_wait(refs.x_full.at[slot])
        for i in range(config.tile_k // CHUNK):
            tile = refs.x_tiles.at[slot, :, pl.ds(i * CHUNK, CHUNK)].T  # [64 inputs, T]
            x = plgpu.load(tile, layout=TRANSPOSED)
            chunk = refs.norm_scales.at[k * (config.tile_k // CHUNK) + i]
            scales = plgpu.load(chunk, layout=TRANSPOSED.reduce(1), optimized=False)
            tile[...] = x * lax.broadcast_in_dim(scales, x.shape, [0])
            if squares is not None:
                wide = x.astype(jnp.float32)
                squares = squares + wide * wide
        plgpu.commit_smem()
        plgpu.barrier_arrive(refs.x_scaled.at[slot])
        return squares

    done = 0
    if not plan.is_partial:  # every round sees all of x: the first is enough
        zeros = plgpu.layout_cast(jnp.zeros((CHUNK, plan.num_rows), jnp.float32), TRANSPOSED)
        mean = jnp.sum(lax.fori_loop(0, plan.steps, scale, zeros), axis=0) / product.num_inputs
        refs.row_factors[...] = lax.rsqrt(mean + product.norm_eps)
        plgpu.barrier_arrive(refs.factors_full)
        done = plan.steps
    pl.loop(done, _num_rounds(plan) * plan.steps)(lambda step: scale(step, None))


def _multiply(plan: Plan, refs) -> None:
    """A multiplying warpgroup: sums over the inputs, then the epilogue, round after round."""
    config, wg = plan.config, lax.axis_index("wg")
    if plan.registers:
        plgpu.set_max_registers(plan.registers[2], action="increase")
    if config.dependent_launch:
        plgpu.griddepcontrol_wait()

    @pl.loop(0, _num_rounds(plan))
    def _round(round_id):
        tile, k = _place(plan, round_id * plan.steps)
        block = tile * config.warpgroups + wg
        rows, outputs = _from_zero(plan.num_rows), _from_zero(WGMMA_ROWS)  # of a wgmma; fewer may be there
        out_tile = refs.out_tiles.at[wg]
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        if plan.fuses_residual:
            plgpu.copy_gmem_to_smem(refs.residual.at[rows, block, outputs], out_tile, refs.sides.at[wg])
        if plan.fuses_scale:
            for half in range(plan.halves):
                scales = refs.scale.at[half * plan.num_blocks + block, outputs]
                plgpu.copy_gmem_to_smem(scales, refs.scale_tiles.at[wg, half], refs.sides.at[wg])
        sums = _sums(plan, refs, round_id * plan.steps)
        result = _epilogue(plan, refs, sums, round_id)
        out_tile.T[...] = result.astype(plan.out_dtype)
        plgpu.commit_smem()
        out = refs.out.at[lax.div(k, plan.steps)] if plan.is_partial else refs.out
        plgpu.copy_smem_to_gmem(out_tile, out.at[rows, block, outputs])

    plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the writes themselves end with the kernel


def _sums(plan: Plan, refs, first_step) -> tuple:
    """Products of a round summed over its inputs: for each half [64 outputs, T] fp32."""
    config, wg, is_int8 = plan.config, lax.axis_index("wg"), plan.product.weight_dtype == "int8"
    x_ready = refs.x_scaled if plan.product.has_norm else refs.x_full

    def leave(step):
        plgpu.barrier_arrive(refs.free.at[lax.rem(step, plan.stages)])

    def multiply(*sums):
        @pl.loop(0, plan.steps)
        def _step(k):
            slot = lax.rem(first_step + k, plan.stages)
            plgpu.barrier_wait(refs.w_full.at[slot])
            plgpu.barrier_wait(x_ready.at[slot])
            # int8 in parts: while one is multiplied, the next becomes bf16.
            width = CHUNK if is_int8 else config.tile_k
            for first in range(0, config.tile_k, width):
                inputs = pl.ds(first, width)
                for half, acc in enumerate(sums):
                    weight = refs.w_tiles.at[slot, wg, half, :, inputs]
                    weight = load_fragments(weight) if is_int8 else weight
                    plgpu.wgmma(acc, weight, refs.x_tiles.at[slot, :, inputs].T)
                if is_int8 and first + width < config.tile_k:
                    plgpu.wgmma_wait(plan.halves)  # the part before; its registers are free
            if is_int8:
                plgpu.wgmma_wait(0)
                plgpu.commit_smem()  # orders the reads of its tile before the load that overwrites it
                leave(first_step + k)
            else:  # this step's may still run, those of the step before are over
                plgpu.wgmma_wait(plan.halves)
                pl.when(k > 0)(lambda: leave(first_step + k - 1))

        return tuple(acc[...] for acc in sums)

    sums = pl.run_scoped(multiply, *[plgpu.ACC((WGMMA_ROWS, plan.num_rows), jnp.float32)] * plan.halves)
    if not is_int8:
        leave(first_step + plan.steps - 1)
    return sums


def _epilogue(plan: Plan, refs, sums, round_id):
    """All that follows the sums: [64 outputs, T] fp32, in the layout that stores to the transposed tile."""
    wg = lax.axis_index("wg")
    if plan.product.has_norm and not plan.is_partial:
        pl.when(round_id == 0)(lambda: plgpu.barrier_wait(refs.factors_full))
        factors = plgpu.load(refs.row_factors, layout=SUMS.reduce(0), optimized=False)
        sums = [each * lax.broadcast_in_dim(factors, each.shape, [1]) for each in sums]
    if plan.num_side_loads:
        plgpu.barrier_wait(refs.sides.at[wg])
    if plan.fuses_scale:
        load = partial(plgpu.load, layout=SUMS.reduce(1), optimized=False)
        scales = [load(refs.scale_tiles.at[wg, half]).astype(jnp.float32) for half in range(plan.halves)]
        sums = [each * lax.broadcast_in_dim(of, each.shape, [0]) for each, of in zip(sums, scales, strict=True)]
    result = sums[0]
    if plan.halves == 2:
        result = result / (1 + jnp.exp(-result)) * sums[1]
    result = plgpu.layout_cast(result, TRANSPOSED)
    if plan.fuses_residual:
        residual = plgpu.load(refs.out_tiles.at[wg].T, layout=TRANSPOSED, optimized=False)
        result = result + residual.astype(jnp.float32)
    return result
