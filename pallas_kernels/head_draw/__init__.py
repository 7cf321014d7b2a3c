"""LM head, noise and arg-max in one kernel: no logits in memory."""

from pallas_kernels.head_draw.config import MIN_ROWS, HeadDrawConfig, bytes_moved, candidate_configs, default_config
from pallas_kernels.head_draw.hopper import head_draw
from pallas_kernels.head_draw.result import HeadDraw

__all__ = [
    "MIN_ROWS",
    "HeadDraw",
    "HeadDrawConfig",
    "bytes_moved",
    "candidate_configs",
    "default_config",
    "head_draw",
]
