"""int8 weights in the order in which wgmma wants them as bf16 in registers.

A thread of a warpgroup holds, of every 16 inputs of a row, the inputs `2t, 2t + 1, 2t + 8, 2t + 9` (t = 0 to 3). Stored
in natural order these are two loads of two bytes; stored as `[4 threads, 2 halves, 2]` they are four bytes in a row,
which `ldmatrix` loads eight at a time, and no value has to change threads after its conversion. A sum of products does
not mind the order, so whoever multiplies without the kernels reorders the other side: x, which is small.
"""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

GROUP = 16  # inputs that are reordered among themselves


def fragment_order(x: Shaped[Array, "*rows I"]) -> Shaped[Array, "*rows I"]:
    """The inputs (last axis, a multiple of 16) as the kernels store them.

    Example: of 16 inputs the order is 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15.
    """
    return _swapped(x, 2, 4)


def natural_order(x: Shaped[Array, "*rows I"]) -> Shaped[Array, "*rows I"]:
    """Undoes `fragment_order`."""
    return _swapped(x, 4, 2)


def _swapped(x, outer: int, inner: int):
    grouped = x.reshape(*x.shape[:-1], -1, outer, inner, 2)
    return jnp.swapaxes(grouped, -3, -2).reshape(x.shape)
