"""SwiGLU."""

import jax.numpy as jnp

from benchmarks.cases.case import Case, normal
from benchmarks.chains import Inputs
from jetspec_jax.ops.linear import silu_gate
from pallas_kernels.swiglu import SwiGLUConfig, reference, swiglu
from pallas_kernels.swiglu.hopper import THREADS
from pallas_kernels.swiglu.shapes import SHAPES, Rows


def case(name: str, shape: Rows) -> Case:
    """Rows of gate and up."""

    def configs() -> list[SwiGLUConfig]:
        sizes = [(vector_len, times) for vector_len in (2, 4, 8) for times in (1, 2, 4)]
        tried = [SwiGLUConfig(THREADS * vector_len * times, vector_len) for vector_len, times in sizes]
        return [config for config in tried if shape.width % config.tile_len == 0]

    return Case(
        name=name,
        kernel=lambda gate_up, config=None: (swiglu(gate_up, config), ()),
        xla=lambda gate_up: (silu_gate(gate_up), ()),
        reference=lambda gate_up: (reference.swiglu(gate_up), ()),
        make=lambda key: Inputs((normal(key, shape.num_rows, 2 * shape.width),)),
        num_bytes=3 * shape.num_rows * shape.width * jnp.bfloat16.dtype.itemsize,
        configs=configs,
    )


__all__ = ["SHAPES", "case"]
