"""How the weight is cut up and streamed."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SkinnyMatmulConfig:
    """Tiles and pipeline; `plan.py` says which go together.

    Attributes:
        block_rows: outputs of a warpgroup, 8 to 64, a multiple of 8. A wgmma always has 64: fewer leave the rest of it
            idle, which costs nothing while memory is the limit, and let the outputs divide evenly among the SMs.
        warpgroups: multiplying warpgroups of a CTA, 1 or 2; each has its own outputs, and with SwiGLU as many of up.
        tile_k: inputs of a pipeline step, a multiple of 64.
        stages: steps in shared memory, so `stages - 1` are on their way while one is multiplied.
        split_k: parts of the inputs, each its own CTA. Above 1 the kernel writes fp32 partial sums, which XLA adds up.
        max_ctas: of the grid; a CTA then goes through several tiles and loads across their borders. None: a tile a CTA.
    """

    block_rows: int = 64
    warpgroups: int = 1
    tile_k: int = 128
    stages: int = 6
    split_k: int = 1
    max_ctas: int | None = None
