"""Residual addition and the norm of the sum."""

import jax

from benchmarks.cases.case import Case, normal
from benchmarks.chains import Inputs
from jetspec_jax.ops.norm_rope import rms_norm
from pallas_kernels.residual_rms_norm import ResidualRMSNormConfig, reference, residual_rms_norm
from pallas_kernels.residual_rms_norm.shapes import SHAPES, Rows

EPS = 1e-6


def case(name: str, shape: Rows) -> Case:
    """Rows of a residual stream."""
    rows, width = shape.num_rows, shape.width

    def xla(x, delta, scale):
        total = x + delta
        return (total, rms_norm(total, scale, EPS)), ()

    def make(key) -> Inputs:
        keys = jax.random.split(key, 3)
        return Inputs((normal(keys[0], rows, width), normal(keys[1], rows, width), normal(keys[2], width)))

    def configs() -> list[ResidualRMSNormConfig]:
        tried = [ResidualRMSNormConfig(vector_len, warps) for vector_len in (2, 4, 8) for warps in (1, 4)]
        return [config for config in tried if width % config.tile == 0]

    return Case(
        name=name,
        kernel=lambda x, delta, scale, config=None: (residual_rms_norm(x, delta, scale, EPS, config), ()),
        xla=xla,
        reference=lambda x, delta, scale: (reference.residual_rms_norm(x, delta, scale, EPS), ()),
        make=make,
        num_bytes=2 * width * (4 * rows + 1),
        configs=configs,
    )


__all__ = ["SHAPES", "case"]
