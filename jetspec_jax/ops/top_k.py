"""The largest entries of long rows, in two steps that a GPU can spread over its cores."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MIN_WIDTH = 16_384  # shorter rows are taken in one step
MAX_PARTS = 128


def top_k(x: Float[Array, "*rows V"], k: int) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """`jax.lax.top_k`, ties included: the first of equal entries wins, NaN are the largest.

    XLA's kernel gives a row to one block, however long it is: 70 us for 17 rows of 151,936 (H200). Here each of up to
    128 parts of a row finds its own largest first.
    """
    if (parts := num_parts(x.shape[-1], k)) == 1:
        return _whole(x, k)
    in_parts, whole = partial(_in_parts, k=k, parts=parts), partial(_whole, k=k)
    return jax.lax.platform_dependent(x, cpu=whole, default=in_parts)  # five times slower in parts on CPU


def _whole(x, k: int):
    return tuple(jax.lax.top_k(x, k))


def _in_parts(x, k: int, parts: int):
    width = x.shape[-1]
    values, index = jax.lax.top_k(x.reshape(*x.shape[:-1], parts, width // parts), k)
    starts = jnp.arange(0, width, width // parts, dtype=index.dtype)
    index = index + jnp.expand_dims(starts, (*range(x.ndim - 1), x.ndim))
    # Parts come in order, and so do equal entries within one: the first place is the smallest index.
    best, place = jax.lax.top_k(values.reshape(*x.shape[:-1], parts * k), k)
    return best, jnp.take_along_axis(index.reshape(*x.shape[:-1], parts * k), place, axis=-1)


def num_parts(width: int, k: int) -> int:
    """The largest power of two that divides a row into parts of at least k entries; 1 for short rows."""
    parts = 1
    while width >= MIN_WIDTH and parts < MAX_PARTS and width % (2 * parts) == 0 and width // (2 * parts) >= k:
        parts *= 2
    return parts
