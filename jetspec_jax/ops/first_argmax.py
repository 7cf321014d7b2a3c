"""Arg-max with the project's one tie rule: the first index of the maximum."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def first_argmax(scores: Float[Array, "*rows V"]) -> tuple[Int[Array, "*rows"], Float[Array, "*rows"]]:
    """First index of the maximum, and the maximum itself.

    Two vectorised passes; XLA's own arg-max reduces pairs and takes seven times as long on CPU. A row with a NaN has
    the maximum NaN and an index that means nothing.

    Example: [2, 5, 5] -> 1, 5.
    """
    top = jnp.max(scores, axis=-1)  # XLA's of a large array on CPU loses a NaN; the second pass finds it
    indices = jnp.arange(scores.shape[-1], dtype=jnp.int32).reshape((1,) * (scores.ndim - 1) + (-1,))
    last = scores.shape[-1] - 1
    found = jnp.where(jnp.isnan(scores), -1, jnp.where(scores == top[..., None], indices, last))
    first = jnp.min(found, axis=-1)
    has_nan = first < 0
    return jnp.where(has_nan, last, first), jnp.where(has_nan, jnp.nan, top)
