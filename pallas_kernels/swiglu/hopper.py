"""SwiGLU of few rows, Mosaic GPU: elementwise, a block a piece of a row.

* Moved: 3 T F elements (two read, one written); Qwen3-8B, 17 rows, bf16: 1.25 MB, 0.33 us at 3.8 TB/s.
* FLOPs: about 5 T F, and an exponential and a division each.
* Grid: (T, F / tile_len); no shared memory.
* Limits: bf16, fp16 or fp32; F a multiple of 128. Uses nothing that only Hopper has, so Blackwell runs it too.
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

THREADS = 128  # of a warpgroup


@dataclass(frozen=True)
class SwiGLUConfig:
    """How a row is cut.

    Attributes:
        tile_len: elements of a row that a block of one warpgroup does.
        vector_len: consecutive elements that a thread loads at once.
    """

    tile_len: int
    vector_len: int

    @classmethod
    def for_width(cls, width: int, dtype: jnp.dtype) -> "SwiGLUConfig":
        """One load of gate and one of up a thread, of 16 bytes if the width allows: many blocks, each short.

        Raises:
            NotImplementedError: nothing divides the width.
        """
        if width % THREADS:
            raise NotImplementedError(f"F must be a multiple of {THREADS}, got F={width}")
        vector_len = math.gcd(width // THREADS, 16 // dtype.itemsize)
        return cls(vector_len * THREADS, vector_len)


@partial(jax.jit, static_argnames="config")  # a program with many layers lowers each shape once
def swiglu(gate_up: Float[Array, "T twice"], config: SwiGLUConfig | None = None) -> Float[Array, "T F"]:
    """`silu(gate) * up` of rows [T, 2 F], in one launch.

    Everything is fp32 and rounded once. `jax.nn.silu(gate) * up` in bf16 rounds up to five times (XLA's GPU backend
    takes a bf16 exponential and a bf16 sum), so it is a few units in the last place off.

    Raises:
        NotImplementedError: outside the limits above.
    """
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if gate_up.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
        raise NotImplementedError(f"dtype must be bf16, fp16 or fp32, got {gate_up.dtype}")
    config = config or SwiGLUConfig.for_width(width, gate_up.dtype)
    if width % config.tile_len or config.tile_len % (THREADS * config.vector_len):
        raise NotImplementedError(f"{config} does not divide F={width} among {THREADS} threads")
    layout = plgpu.Layout.WG_STRIDED((config.tile_len,), vec_size=config.vector_len)

    def swiglu_kernel(gate_up_ref, out_ref):
        row, first = jax.lax.axis_index("row"), jax.lax.axis_index("tile") * config.tile_len
        gate, up = (
            plgpu.load(gate_up_ref.at[row, pl.ds(side + first, config.tile_len)], layout=layout).astype(jnp.float32)
            for side in (0, width)
        )
        out_ref[row, pl.ds(first, config.tile_len)] = (gate / (1 + jnp.exp(-gate)) * up).astype(gate_up.dtype)

    return plgpu.kernel(
        swiglu_kernel,
        out_type=jax.ShapeDtypeStruct((num_rows, width), gate_up.dtype),
        grid=(num_rows, width // config.tile_len),
        grid_names=("row", "tile"),
        # Safe because nothing that is written is read.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
    )(gate_up)
