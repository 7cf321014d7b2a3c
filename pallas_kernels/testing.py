"""Checks of kernels on a machine without a GPU: an interpreter that finds races, and lowering for a named GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_kernels.fragments import emulated

# Streaming multiprocessors of the GPUs that kernels are lowered for.
NUM_CORES = {"NVIDIA H200": 132, "NVIDIA GB200": 148}


@contextmanager
def interpreted(device_kind: str = "NVIDIA H200") -> Iterator[None]:
    """Runs Mosaic GPU kernels on the CPU as if on this GPU; a data race is an error."""
    races = plgpu.InterpretGPUParams(detect_races=True)
    with _on(device_kind), emulated(), plgpu.force_gpu_interpret_mode(races):
        yield


def lower_for(device_kind: str, function: Callable, *shapes: Any) -> str:
    """Lowers a function for a GPU that need not be there; no PTX is made, so registers and spills stay unseen.

    Args:
        shapes: pytrees of `jax.ShapeDtypeStruct`, one for each of its arguments.

    Returns:
        The lowered module as text.

    Raises:
        Exception: whatever the lowering refuses; too much shared memory is among it.
    """
    with _on(device_kind):
        return jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()


def _on(device_kind: str) -> Any:
    device = AbstractDevice(device_kind=device_kind, platform="gpu", num_cores=NUM_CORES[device_kind])
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))
