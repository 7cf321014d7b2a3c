"""Residual addition and RMSNorm in plain jnp: the definition that the kernel is held to."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def residual_rms_norm(
    x: Float[Array, "T D"], delta: Float[Array, "T D"], scale: Float[Array, "D"], eps: float
) -> tuple[Float[Array, "T D"], Float[Array, "T D"]]:
    """`(x + delta, rms_norm(x + delta))`: the sum is rounded to its dtype first, the statistics are fp32."""
    total = x + delta
    wide = total.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return total, wide.astype(x.dtype) * scale[None, :].astype(x.dtype)
