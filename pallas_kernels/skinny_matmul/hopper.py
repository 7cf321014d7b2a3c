"""Matrix product of few rows, Mosaic GPU for sm_90a: the weight is streamed once, everything else is fused around it.

Operands are swapped: outputs are M of a wgmma, rows of x are N, so 8 rows cost what they weigh. One warpgroup of a CTA
loads (TMA, `stages` deep), one or two multiply, and with a norm one more scales the tiles of x where they lie and sums
their squares; 1 / rms, which is a row's own, multiplies the sums at the end. int8 weights, which are stored in
fragment order, become bf16 in registers; fp8 weights are multiplied as they are, with fp8 rows.

* Moved: the weight once; Qwen3-8B, 17 rows, bf16: gate and up 201 MB, 48 us at 4.2 TB/s, down 101 MB, qkv 50 MB, output
  34 MB. x is read by every CTA from the second-level cache: `T I 2` bytes times CTAs, divided by `split_k`.
* FLOPs: 2 T O I, and 64 / block_rows times as many are executed.
* Grid: `O / (block_rows * warpgroups) * split_k` CTAs, or `max_ctas`.
* SMEM per stage: `64 * warpgroups * tile_k` of the weight (twice that with SwiGLU), `T * tile_k` elements of x.
* Limits: `Plan.check`; x is bf16, or fp8 with an fp8 weight; the result may be fp8, for another such product. Blackwell
  has no wgmma: there and on a CPU it refuses.
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

from pallas_kernels.fp8 import FP8
from pallas_kernels.skinny_matmul.config import SkinnyMatmulConfig
from pallas_kernels.skinny_matmul.plan import CHUNK, WGMMA_ROWS, Plan
from pallas_kernels.skinny_matmul.product import Product
from pallas_kernels.skinny_matmul.roles import load, multiply, rounded, scale_rows
from pallas_kernels.skinny_matmul.tuning import default_config

HOPPER = ("H100", "H200", "GH200")


def skinny_matmul(
    x: Float[Array, "T I"],
    weight: Float[Array, "O I"] | Int8[Array, "O I"],
    *,
    scale: Float[Array, "O"] | None = None,
    norm: tuple[Float[Array, " I"], float] | None = None,
    residual: Float[Array, "T out"] | None = None,
    swiglu: bool = False,
    out_dtype: DTypeLike | None = None,
    config: SkinnyMatmulConfig | None = None,
) -> Float[Array, "T out"]:
    """`residual + act((norm(x) W^T) * scale)` in one launch, accumulated in fp32; arguments as in `reference.py`.

    The norm's scale multiplies x in bf16 and 1 / rms the fp32 sums, where the reference rounds both together: results
    differ by the rounding of bf16. More than 8 rows are padded to a multiple of 8 here, which costs small copies
    before and after; whoever pads the rows of a whole decode step once has none.

    Args:
        config: tiles; chosen by the shape unless given.

    Raises:
        NotImplementedError: outside the limits above.
    """
    num_cores = _num_cores()
    out_dtype = jnp.dtype(out_dtype or x.dtype)
    wanted = FP8 if weight.dtype == FP8 else jnp.dtype(jnp.bfloat16)
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
    y = _launch(plan, x, weight, scale, norm_scale, residual)
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
    return rounded(y, product.out_dtype)


@partial(jax.jit, static_argnums=0)  # a program with many layers traces and lowers each shape once
def _launch(plan: Plan, x, weight, scale, norm_scale, residual):
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
    roles = [load] + [scale_rows] * plan.product.has_norm

    def skinny_matmul_kernel(*args, **scratch):
        refs = SimpleNamespace(**dict(zip([*operands, "out"], args, strict=True)), **scratch)
        wg = lax.axis_index("wg")
        pl.when(wg < config.warpgroups)(lambda: multiply(plan, refs))
        for i, role in enumerate(roles):
            pl.when(wg == config.warpgroups + i)(partial(role, plan, refs))

    y = plgpu.kernel(
        skinny_matmul_kernel,
        out_type=jax.ShapeDtypeStruct((config.split_k, *blocks) if plan.is_partial else blocks, plan.out_dtype),
        scratch_types=_scratch(plan, weight.dtype, scale),
        grid=(plan.num_ctas,),
        grid_names=("cta",),
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
    # A store beyond the block's outputs is cut off, which needs tiles that divide them.
    out_tile = CHUNK if plan.out_dtype.itemsize <= 2 else _largest_divisor(config.block_rows, (32, 16, 8))
    scratch = {
        "w_tiles": plgpu.SMEM(weight_tiles, weight_dtype, transforms=_swizzled(width, weight_dtype)),
        "x_tiles": plgpu.SMEM((stages, rows, config.tile_k), x_dtype, transforms=_swizzled(width, x_dtype)),
        "out_tiles": plgpu.SMEM(
            (config.warpgroups, rows, WGMMA_ROWS), plan.out_dtype, transforms=_swizzled(out_tile, plan.out_dtype)
        ),
        "w_full": plgpu.Barrier(num_barriers=stages, num_arrivals=config.warpgroups * plan.halves),
        "x_full": plgpu.Barrier(num_barriers=stages),
        "free": plgpu.Barrier(num_barriers=stages, num_arrivals=config.warpgroups),
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


def _largest_divisor(number: int, divisors: tuple[int, ...]) -> int:
    return next(divisor for divisor in divisors if number % divisor == 0)


def _swizzled(width: int, dtype) -> tuple:
    """Transforms of a tile whose rows have `width` elements or a multiple, as wgmma and TMA want it."""
    size = jnp.dtype(dtype).itemsize
    swizzle = _largest_divisor(width * size, (128, 64, 32))
    return plgpu.TilingTransform((8, swizzle // size)), plgpu.SwizzleTransform(swizzle)
