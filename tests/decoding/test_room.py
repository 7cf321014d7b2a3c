"""Room for results: a buffer of the right kind for each, anew at each call."""

import jax
import jax.numpy as jnp
import pytest

from jetspec_jax.decoding.room import room_for


def kind(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


@pytest.mark.parametrize("on", [0, 1], ids=["first-device", "second-device"])
def test_each_result_has_a_buffer_of_its_own(cpu_devices, on):
    results = {"tokens": jax.ShapeDtypeStruct((2,), jnp.int32), "pair": (jnp.ones((2,)), jnp.ones((2,)))}
    make = room_for(results, cpu_devices[on])
    with jax.transfer_guard("disallow"):  # as in the decoding loop
        rooms = [make(), make()]
    leaves = jax.tree.leaves(rooms)
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
    assert [kind(room) for room in rooms] == [kind(results)] * 2
    assert all(leaf.devices() == {cpu_devices[on]} and leaf.committed for leaf in leaves)
