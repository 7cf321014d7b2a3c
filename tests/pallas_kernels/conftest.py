import jax
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks


@pytest.fixture
def registers_for_wgmma(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter knows wgmma with both operands in shared memory; this adds the left one in registers."""
    known = gpu_callbacks.wgmma

    def wgmma(*, a_allocation_key_as_array, **rest):
        if a_allocation_key_as_array.ndim != 2:
            return known(a_allocation_key_as_array=a_allocation_key_as_array, **rest)
        memory, thread = gpu_callbacks._get_shared_memory(), rest["thread"]

        def access(name):
            key = gpu_callbacks.HostAllocationKey.from_array(rest[f"{name}_allocation_key_as_array"])
            transforms = gpu_callbacks._remove_noop_transforms(rest[f"{name}_transforms"])
            where = memory.access(key, jax.tree.map(int, transforms))
            return key, where, memory.get_buffer_content(key, where, thread, logging_info=None)[0]

        key, where, acc = access("acc")
        added = np.matmul(np.asarray(a_allocation_key_as_array), access("b")[2], dtype=acc.dtype)
        memory.store_buffer_content(key, where, acc + added, thread, logging_info=None)
        return rest["token"]

    monkeypatch.setattr(gpu_callbacks, "wgmma", wgmma)
