"""What the warpgroups of a CTA do: one loads, one scales x by the norm, one or two multiply; see `hopper.py`.

`refs` holds the operands, the result and what `hopper._scratch` declares.
"""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels.fp8 import FP8, to_fp8
from pallas_kernels.fragments import load_fragments
from pallas_kernels.skinny_matmul.plan import CHUNK, WGMMA_ROWS, Plan

SUMS, TRANSPOSED = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA_TRANSPOSED


def _num_rounds(plan: Plan):
    """Work items of this CTA."""
    if plan.num_items % plan.num_ctas == 0:
        return plan.num_items // plan.num_ctas
    return lax.div(plan.num_items - 1 - lax.axis_index("cta"), plan.num_ctas) + 1


def _place(plan: Plan, step):
    """Tile of outputs and tile of inputs at a step of this CTA, counted over all its rounds."""
    item = lax.axis_index("cta") + lax.div(step, plan.steps) * plan.num_ctas
    k = lax.rem(item, plan.config.split_k) * plan.steps + lax.rem(step, plan.steps)
    return lax.div(item, plan.config.split_k), k


def _from_zero(size: int) -> pl.Slice:
    """A slice that may reach beyond its array: TMA reads zeros there and writes nothing.

    Its start is not a Python number because a slice that is known to be too long is refused.
    """
    return pl.ds(lax.axis_index("cta") * 0, size)


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
    """The tile of x of a step."""
    config, (_, k) = plan.config, _place(plan, step)
    x = refs.x.at[_from_zero(plan.num_rows), pl.ds(k * config.tile_k, config.tile_k)]
    plgpu.copy_gmem_to_smem(x, refs.x_tiles.at[slot], refs.x_full.at[slot])


def load(plan: Plan, refs) -> None:
    """The loading warpgroup: weights and x in order of need, as far ahead as slots are free."""
    total = _num_rounds(plan) * plan.steps
    if plan.registers:
        plgpu.set_max_registers(plan.registers[0], action="decrease")
    if plan.product.has_norm:
        plgpu.copy_gmem_to_smem(refs.norm_scale, refs.norm_scales, refs.norm_full)
    for slot in range(plan.stages):
        # x first: behind the weights of all stages it would arrive when they are all there, microseconds later.
        _load_x(plan, refs, jnp.int32(slot), slot)
        _load_weight(plan, refs, jnp.int32(slot), slot)

    @pl.loop(plan.stages, total)
    def _load_next(step):
        slot = lax.rem(step, plan.stages)
        plgpu.barrier_wait(refs.free.at[slot])
        _load_weight(plan, refs, step, slot)
        _load_x(plan, refs, step, slot)


def scale_rows(plan: Plan, refs) -> None:
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


def multiply(plan: Plan, refs) -> None:
    """A multiplying warpgroup: sums over the inputs, then the epilogue, round after round."""
    config, wg = plan.config, lax.axis_index("wg")
    if plan.registers:
        plgpu.set_max_registers(plan.registers[2], action="increase")

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
        out_tile.T[...] = rounded(result, plan.out_dtype)
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

    def accumulate(*sums):
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

    sums = pl.run_scoped(accumulate, *[plgpu.ACC((WGMMA_ROWS, plan.num_rows), jnp.float32)] * plan.halves)
    if not is_int8:
        leave(first_step + plan.steps - 1)
    return sums


def rounded(result: Float[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """fp32 results in their dtype; in fp8 as if those in bf16 were rounded again."""
    # From fp32: not every ptxas knows bf16 to fp8.
    return to_fp8(result.astype(jnp.bfloat16).astype(jnp.float32)) if dtype == FP8 else result.astype(dtype)


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
        read = partial(plgpu.load, layout=SUMS.reduce(1), optimized=False)
        scales = [read(refs.scale_tiles.at[wg, half]).astype(jnp.float32) for half in range(plan.halves)]
        sums = [each * lax.broadcast_in_dim(of, each.shape, [0]) for each, of in zip(sums, scales, strict=True)]
    result = sums[0]
    if plan.halves == 2:
        result = result / (1 + jnp.exp(-result)) * sums[1]
    result = plgpu.layout_cast(result, TRANSPOSED)
    if plan.fuses_residual:
        residual = plgpu.load(refs.out_tiles.at[wg].T, layout=TRANSPOSED, optimized=False)
        result = result + residual.astype(jnp.float32)
    return result
