"""Results in one buffer: what is read is what was packed, and buffers are used again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.decoding.packed import Packer

DEVICE = jax.devices()[0]


def arrays(offset: int = 0) -> list[jax.Array]:
    return [
        jnp.arange(6, dtype=jnp.int32).reshape(2, 3) - 3 + offset,
        jnp.array([[True, False]]),
        jnp.array([jnp.nan, -jnp.inf, 1e-40, -0.0], jnp.float32),
        jnp.array([2**32 - 1], jnp.uint32),
        jnp.array([-128, 127], jnp.int8),
        jnp.float32(0.1),
    ]


def test_what_is_read_is_what_was_packed_bit_by_bit():
    packer, packed = Packer(), arrays()
    for got, expected in zip(packer.read(packer.pack(packed, DEVICE)), packed, strict=True):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert got.tobytes() == np.asarray(expected).tobytes()


def test_buffers_of_what_was_read_are_written_over_and_what_was_read_stays():
    packer, at, read, in_flight = Packer(), set(), [], []
    packer.on_cpu = True
    for offset in range(8):  # two in flight, as in the decoding loop
        in_flight.append(packer.pack(arrays(offset), DEVICE))
        at.add(in_flight[-1].words.unsafe_buffer_pointer())
        if len(in_flight) == 2:
            read.append(packer.read(in_flight.pop(0)))
    assert len(at) == 2
    assert [int(each[0][0, 0]) for each in read] == [offset - 3 for offset in range(7)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(TypeError, match=dtype):
        Packer().pack([jnp.zeros((2,), dtype)], DEVICE)
