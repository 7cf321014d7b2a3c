"""What the host reads of a round, in one buffer: one copy off the device instead of one for each array."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from jetspec_jax.decoding.room import room_for

_WORD = np.dtype(np.int32)


@dataclass(frozen=True)
class Packed:
    """Arrays of one device, one after the other as 32-bit words.

    Attributes:
        words: the arrays' elements; floats by their bits, what is narrower widened.
        device: where they lie.
        avals: their shapes and dtypes.
    """

    words: Int32[Array, " W"]
    device: jax.Device
    avals: tuple[jax.ShapeDtypeStruct, ...]

    def read(self) -> list[np.ndarray]:
        """The arrays in numpy, once the device has made them; copies, so that `words` may be written over."""
        words, start, arrays = np.array(jax.device_get(self.words)), 0, []
        for aval in self.avals:
            some = words[start : start + aval.size].reshape(aval.shape)
            arrays.append(some.view(aval.dtype) if aval.dtype.itemsize == _WORD.itemsize else some.astype(aval.dtype))
            start += aval.size
        return arrays


class Packer:
    """Packs results and takes back the buffers of those that were read, so that a loop allocates nothing.

    New buffers would not only cost: the room that a program works in lies elsewhere once the room of before has been
    taken, and a GPU graph is updated node by node then (`executables.py`).
    """

    on_cpu = False  # whether buffers are written over there too, where numpy may look into them

    def __init__(self):
        self._free: dict[tuple[jax.Device, int], list[Array]] = {}

    def pack(self, arrays: Sequence[Array], device: jax.Device) -> Packed:
        """Queues the packing of arrays of a device, and the words' copy to the host.

        Raises:
            TypeError: an array of a dtype that 32 bits do not hold, or whose bits mean something else.
        """
        avals = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays)
        num_words = sum(aval.size for aval in avals)
        free = self._free.setdefault((device, num_words), [])
        if device.platform == "cpu" and not self.on_cpu:
            words = _packed_anew(tuple(arrays))
        else:
            place = free.pop() if free else room_for(jax.ShapeDtypeStruct((num_words,), _WORD), device)()
            words = _packed(place, tuple(arrays))
        # A transfer guard takes the start of an asynchronous copy for an implicit transfer; it is the one we want.
        with jax.transfer_guard_device_to_host("allow"):
            words.copy_to_host_async()
        return Packed(words, device, avals)

    def read(self, packed: Packed) -> list[np.ndarray]:
        """Waits for the arrays; their buffer is written over by a later `pack`."""
        arrays = packed.read()
        if packed.device.platform == "cpu" and not self.on_cpu:
            return arrays
        self._free[packed.device, packed.words.size].append(packed.words)
        return arrays


@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _packed(place: Int32[Array, " W"], arrays: tuple[Array, ...]) -> Int32[Array, " W"]:
    return jnp.concatenate([_words(array).reshape(-1) for array in arrays])


@jax.jit
def _packed_anew(arrays: tuple[Array, ...]) -> Int32[Array, " W"]:
    return jnp.concatenate([_words(array).reshape(-1) for array in arrays])


def _words(array: Array) -> Int32[Array, "..."]:
    if array.dtype in (jnp.bool_, jnp.int8, jnp.int16, jnp.uint8, jnp.uint16):
        return array.astype(_WORD)
    if array.dtype not in (jnp.int32, jnp.uint32, jnp.float32):
        raise TypeError(f"a round tells the host bool, integers of at most 32 bits or fp32, got {array.dtype}")
    return jax.lax.bitcast_convert_type(array, _WORD)
