"""Rounding to fp8 (e4m3: 4 bits of exponent, 3 of mantissa), the same in kernels, their references and XLA's forms."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float8e4m3fn

FP8 = jnp.dtype(jnp.float8_e4m3fn)
MOST_FP8 = 448  # the largest magnitude


def to_fp8(x: Float[Array, "..."]) -> Float8e4m3fn[Array, "..."]:
    """The nearest fp8, 448 at most; NaN stays. The format has no infinity: a cast alone makes NaN of what is larger."""
    return jnp.clip(x, -MOST_FP8, MOST_FP8).astype(FP8)
