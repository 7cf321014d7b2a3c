"""Residual addition and RMSNorm in plain jnp: the definition that the kernel is held to."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels.fp8 import FP8, to_fp8


def residual_rms_norm(
    x: Float[Array, "T D"],
    delta: Float[Array, "T D"],
    scale: Float[Array, "D"],
    eps: float,
    norm_dtype: DTypeLike | None = None,
) -> tuple[Float[Array, "T D"], Float[Array, "T D"]]:
    """`(x + delta, rms_norm(x + delta))`: the sum is rounded to its dtype first, the statistics are fp32.

    Args:
        norm_dtype: of the norm: that of x unless given, or fp8, to which the norm in that of x is rounded again, 448 at
            most; NaN stays.
    """
    total = x + delta
    wide = total.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    normed = wide.astype(x.dtype) * scale[None, :].astype(x.dtype)
    return total, to_fp8(normed) if norm_dtype == FP8 else normed
