"""New buffers for results to be written over."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding


def room_for(results: Any, device: jax.Device) -> Callable[[], Any]:
    """A compiled program that makes room for results in one dispatch: a buffer each, as they are donated one by one.

    The buffers are the device's own, not memory that numpy lends it. Programs are kept and shared.

    Args:
        results: a pytree of arrays, or of what describes them.
        device: where they are to lie.
    """
    leaves, treedef = jax.tree.flatten(results)
    program = _program(tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), device)
    return lambda: jax.tree.unflatten(treedef, program())


@cache
def _program(types: tuple[tuple[tuple[int, ...], str], ...], device: jax.Device) -> Callable[[], tuple[jax.Array, ...]]:
    def room():
        return tuple(jnp.zeros(shape, dtype) for shape, dtype in types)

    return jax.jit(room, out_shardings=SingleDeviceSharding(device)).lower().compile()
