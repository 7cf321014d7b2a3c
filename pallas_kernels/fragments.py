"""int8 weights in fragment order (`fragment_order.py`), loaded as bf16 registers of a wgmma."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax.experimental.mosaic.gpu as mgpu
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int8

from pallas_kernels.fragment_order import natural_order

_emulated: ContextVar[bool] = ContextVar("fragments_emulated", default=False)


def load_fragments(tile) -> Float[Array, "outputs I"]:
    """A tile of int8 weights in fragment order, from shared memory, as bf16 in natural order and wgmma's layout.

    Args:
        tile: reference to [outputs, I], a multiple of 64 outputs.
    """
    if _emulated.get():
        return natural_order(tile[...]).astype(jnp.bfloat16)
    # "Optimized" asks for loads of 16 bytes, which this layout does not have.
    values: Int8[Array, "outputs I"] = plgpu.load(tile, layout=plgpu.Layout.WGMMA_8BIT, optimized=False)
    return _renamed(values.astype(jnp.bfloat16))


def _renamed(weight: Float[Array, "outputs I"]) -> Float[Array, "outputs I"]:
    """The same registers, seen as those of natural order: no instruction."""

    @plgpu.inline_mgpu(
        arg_types=(plgpu.Layout.WGMMA_8BIT,),
        return_type=plgpu.ShapeDtypeStruct(weight.shape, weight.dtype, layout=plgpu.Layout.WGMMA),
    )
    def rename(_, array):
        registers = np.empty(mgpu.WGMMA_LAYOUT.registers_shape(weight.shape), dtype=object)
        for (row, group, *rest), register in np.ndenumerate(array.registers):
            for half in range(2):  # of the group: inputs 0 to 7 and 8 to 15
                pair = mgpu.utils.vector_slice(register, slice(2 * half, 2 * half + 2))
                registers[(row, 2 * group + half, *rest)] = pair
        return mgpu.FragmentedArray(_registers=registers, _layout=mgpu.WGMMA_LAYOUT, _is_signed=None)

    return rename(weight)


@contextmanager
def emulated() -> Iterator[None]:
    """What is traced inside reorders values instead of renaming registers, which the interpreter cannot."""
    token = _emulated.set(True)
    try:
        yield
    finally:
        _emulated.reset(token)
