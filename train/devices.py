"""Data parallelism: one mesh axis "data" over all devices of all processes, parameters on each of them.

The compiler splits the work: the loss is written for the global batch, and any number of devices gives the same steps.
"""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from train.batch import Batch

AXIS = "data"


def initialize_distributed(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Joins the processes of a run; before anything else uses JAX. Nothing to do if all three are None.

    Args:
        coordinator: "host:port" of process 0, or "auto" where the cluster's own environment (Slurm, MPI, ...) tells.
        num_processes: of the run, not of the host.
        process_id: of this one, from 0.
    """
    if (coordinator, num_processes, process_id) == (None, None, None):
        return
    if coordinator == "auto":
        if num_processes is not None or process_id is not None:
            raise ValueError("coordinator 'auto' finds num_processes and process_id itself")
        jax.distributed.initialize()
        return
    if coordinator is None or num_processes is None or process_id is None:
        raise ValueError(
            "coordinator, num_processes and process_id belong together, "
            f"got {coordinator!r}, {num_processes}, {process_id}"
        )
    if not 0 <= process_id < num_processes:
        raise ValueError(f"process_id must be in [0, {num_processes}), got {process_id}")
    jax.distributed.initialize(coordinator, num_processes=num_processes, process_id=process_id)


def data_mesh() -> Mesh:
    """All devices in one row, those of process 0 first."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(devices), (AXIS,))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows spread over the devices, in order."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def put_batch(batch: Batch, mesh: Mesh) -> Batch:
    """The global batch from this process's rows (numpy). Process p holds rows [p * b, (p + 1) * b)."""
    sharding = batch_sharding(mesh)
    return jax.tree.map(lambda rows: jax.make_array_from_process_local_data(sharding, rows), batch)


def replicate(tree: Any, mesh: Mesh, *, may_alias: bool) -> Any:
    """A pytree's arrays on every device; the same values must be given on every process.

    Args:
        may_alias: whether the result may share memory with `tree`; not if it is donated later.
    """
    sharding = replicated(mesh)
    if jax.process_count() == 1:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding, may_alias=may_alias), tree)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf), np.shape(leaf)), tree
    )


def local_copy(tree: Any) -> Any:
    """A replicated pytree on this process's first device: the same buffers, valid until the original is donated."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def is_primary() -> bool:
    """Whether this process writes files and logs."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits for all processes."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def from_primary(values: Any) -> Any:
    """A pytree of numbers as process 0 has it, as numpy."""
    if jax.process_count() == 1:
        return values
    return multihost_utils.broadcast_one_to_all(values)


def from_all(rows: np.ndarray) -> np.ndarray:
    """The rows of all processes, in order."""
    if jax.process_count() == 1:
        return rows
    return np.asarray(multihost_utils.process_allgather(rows, tiled=True))
