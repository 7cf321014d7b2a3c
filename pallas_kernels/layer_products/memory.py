"""Outputs of a wgmma in global memory, and how the CTAs of a grid wait for each other's.

A wgmma has 64 outputs as rows, of which a warpgroup may own fewer; in memory they are columns. Loads repeat what is
at the edge beyond it, stores leave it out. The interpreter has none of this: `emulated()` of `fragments.py` stands in,
with a grid of one CTA.
"""

import jax.experimental.mosaic.gpu as mgpu
import jax.numpy as jnp
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith, memref
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels.fragments import is_emulated

SUMS = plgpu.Layout.WGMMA


def load_outputs(ref, num_outputs: int, num_rows: int) -> Float[Array, "outputs T"]:
    """The transpose of [rows, columns] in global memory as registers of [num_outputs, num_rows]."""
    if is_emulated():
        values = ref[...].T
        return jnp.pad(values, [(0, num_outputs - values.shape[0]), (0, num_rows - values.shape[1])], mode="edge")
    return _gathered(ref, (num_outputs, num_rows), SUMS, lambda row, column: (column, row))


def load_scales(ref, num_outputs: int) -> Float[Array, "outputs"]:
    """One number an output."""
    if is_emulated():
        return jnp.pad(ref[...], (0, num_outputs - ref.shape[0]), mode="edge")
    return _gathered(ref, (num_outputs,), SUMS.reduce(1), lambda row: (row,))


def store_outputs(ref, values: Float[Array, "outputs T"]) -> None:
    """Writes the transpose of what `ref` [rows, columns] has room for."""
    if is_emulated():
        rows, columns = ref.shape
        ref[...] = values[:columns, :rows].T
        return

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), SUMS))
    def scatter(_, out, array):
        rows, columns = ir.MemRefType(out.type).shape

        def store(value, index):
            column, row = index
            inside = _below(column, columns)
            if rows < array.shape[1]:
                inside = arith.andi(inside, _below(row, rows))
            with mgpu.utils.when(inside):
                memref.store(value, out, [row, column])

        array.foreach(store)

    scatter(ref, values)


def release_to_copies() -> None:
    """What this thread has written, and has seen of others, comes before copies by TMA that follow it."""
    if is_emulated():
        return

    @plgpu.inline_mgpu()
    def fence(_):
        mgpu.utils.inline_ptx("fence.proxy.async;", has_side_effects=True)

    fence()


def meet(arrivals, index: int, num_ctas: int) -> None:
    """Waits until every CTA of the grid has come here; what each wrote before is seen by all after.

    Args:
        arrivals: reference to int32 counters in global memory, zero at the start of the kernel.
        index: of the counter, one for each meeting.
    """
    if is_emulated():
        return

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
    def arrive_and_wait(_, counters):
        counter = mgpu.utils.memref_slice(counters, index)
        semaphore = mgpu.utils.SemaphoreRef(mgpu.utils.memref_ptr(counter))
        mgpu.utils.warpgroup_barrier()  # one thread signals for all
        semaphore.signal(1, memory_scope="gpu")
        semaphore.wait(num_ctas, decrement=False, memory_scope="gpu")

    arrive_and_wait(arrivals)


def _gathered(ref, shape: tuple[int, ...], layout, place):
    dtype: DTypeLike = ref.dtype

    @plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(),), return_type=plgpu.ShapeDtypeStruct(shape, dtype, layout=layout)
    )
    def gather(_, source):
        limits = ir.MemRefType(source.type).shape
        zero = mgpu.utils.c(0, mgpu.utils.dtype_to_ir_type(jnp.dtype(dtype)))
        mosaic_layout = layout.to_mgpu()
        zeros = mgpu.FragmentedArray.splat(zero, shape, layout=mosaic_layout)

        def load(_, index):
            where = [arith.minui(i, _index(limit - 1)) for i, limit in zip(place(*index), limits, strict=True)]
            return memref.load(source, where)

        return zeros.foreach(load, create_array=True)

    return gather(ref)


def _below(value, limit: int):
    return arith.cmpi(arith.CmpIPredicate.ult, value, _index(limit))


def _index(value: int):
    return mgpu.utils.c(value, ir.IndexType.get())
