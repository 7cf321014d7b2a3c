"""The operations of `pallas_kernels` as cases of `benchmarks/kernels.py`, named as in `jetspec_jax.ops.kernels`."""

from collections.abc import Iterator

from benchmarks.cases import attention, head_draw, matmul, qk_norm_rope, residual_norm, swiglu
from benchmarks.cases.case import Case

_MODULES = {
    "attention": attention,
    "qk_norm_rope": qk_norm_rope,
    "residual_norm": residual_norm,
    "swiglu": swiglu,
    **dict.fromkeys(matmul.OPS.values(), matmul),
    "head_draw": head_draw,
}


def cases_of(op: str, *, context_len: int) -> Iterator[Case]:
    """An operation at its named shapes.

    Args:
        op: one of `jetspec_jax.ops.kernels.OPS`.
        context_len: tokens in the caches that attention reads.
    """
    module = _MODULES[op]
    for name, shape in module.SHAPES.items():
        if module is matmul and op != matmul.OPS[shape.weight_dtype]:
            continue
        yield module.case(name, shape, context_len) if op == "attention" else module.case(name, shape)


__all__ = ["Case", "cases_of"]
