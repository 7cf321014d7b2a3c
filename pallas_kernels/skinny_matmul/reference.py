"""Matrix product of few rows in plain jnp: the definition that the kernel is held to."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int8

from pallas_kernels.fp8 import FP8, to_fp8
from pallas_kernels.fragment_order import natural_order


def skinny_matmul(
    x: Float[Array, "T I"],
    weight: Float[Array, "O I"] | Int8[Array, "O I"],
    *,
    scale: Float[Array, "O"] | None = None,
    norm: tuple[Float[Array, " I"], float] | None = None,
    residual: Float[Array, "T out"] | None = None,
    swiglu: bool = False,
    out_dtype: DTypeLike | None = None,
) -> Float[Array, "T out"]:
    """`residual + act((norm(x) W^T) * scale)`, accumulated in fp32 and rounded at the end.

    Args:
        weight: int8 in fragment order.
        scale: of each output, for a weight of 8 bits.
        norm: scale and epsilon of an RMSNorm of the rows of x, rounded to the dtype of x before the product.
        residual: added last.
        swiglu: the weight holds the rows of gate and then those of up, F each; the result is `silu(gate) * up` [T, F].
        out_dtype: that of x unless given. fp8: the result in bf16, rounded again, 448 at most; NaN stays.
    """
    if norm is not None:
        norm_scale, eps = norm
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
        x = wide.astype(x.dtype) * norm_scale[None, :].astype(x.dtype)
    highest = jax.lax.Precision.HIGHEST
    weight = natural_order(weight) if weight.dtype == jnp.int8 else weight
    out_dtype = out_dtype or x.dtype
    x = x.astype(jnp.bfloat16) if x.dtype == FP8 else x  # exact
    y = jnp.einsum("ti,oi->to", x, weight.astype(x.dtype), precision=highest, preferred_element_type=jnp.float32)
    if scale is not None:
        y = y * scale[None, :].astype(jnp.float32)
    if swiglu:
        gate, up = jnp.split(y, 2, axis=-1)
        y = jax.nn.silu(gate) * up
    if residual is not None:
        y = y + residual.astype(jnp.float32)
    return to_fp8(y.astype(jnp.bfloat16)) if out_dtype == FP8 else y.astype(out_dtype)
