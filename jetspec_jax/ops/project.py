"""Matrix products of activations with weights stored as [out, in]."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def project(
    x: Float[Array, "*rows I"], weight: Float[Array, "O I"], out_dtype: DTypeLike | None = None
) -> Float[Array, "*rows O"]:
    """`x W^T`, contracted over the last, contiguous axis of both; the result has the dtype of x unless given."""
    return jnp.einsum("...i,oi->...o", x, weight, preferred_element_type=out_dtype or x.dtype)
