"""Projections with what stands before and after them in a decoder layer: norm, SwiGLU, residual.

The XLA forms are the plain compositions; on GPU one kernel reads the weight once and does the rest on the way. Kernels
are imported where they are taken: whoever has no GPU need not load them.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jetspec_jax.ops.kernels import ROW_MULTIPLE, choose, normalises
from jetspec_jax.ops.norm_rope import rms_norm
from jetspec_jax.ops.project import Weight, project, project_from
from jetspec_jax.ops.quantized_weight import QuantizedWeight
from pallas_kernels.fp8 import FP8

# The weight of the next product, if there is one; its axes are others than those of the weight beside it.
Following = Float[Array, "..."] | QuantizedWeight | None


def linear(
    x: Float[Array, "*rows I"],
    weight: Weight,
    bias: Float[Array, "O"] | None = None,
    *,
    norm: tuple[Float[Array, " I"], float] | None = None,
    residual: Float[Array, "*rows O"] | None = None,
    out_dtype: DTypeLike | None = None,
) -> Float[Array, "*rows O"]:
    """`residual + norm(x) W^T + b`, each part if given.

    Args:
        norm: scale and epsilon of an RMSNorm of x.
        out_dtype: of the product; that of x unless given, or of the weight if x is fp8 already.
    """

    def kernel():
        return _skinny(x, weight, bias, norm=norm, residual=residual, out_dtype=out_dtype)

    def otherwise():
        y = project(x if norm is None else rms_norm(x, *norm), weight, out_dtype)
        y = y if bias is None else y + jnp.expand_dims(bias, range(y.ndim - 1))
        return y if residual is None else residual + y

    return choose(_op(weight), kernel, otherwise)


def linear_from(
    x: Float[Array, "*rows I"], weight: Weight, bias: Float[Array, "O"] | None, start: int
) -> Float[Array, "*rows O2"]:
    """Outputs `start ..` of `x W^T + b`."""

    def otherwise():
        y = project_from(x, weight, start)
        return y if bias is None else y + jnp.expand_dims(bias[start:], range(y.ndim - 1))

    return choose(_op(weight), lambda: _skinny(x, weight[start:], bias), otherwise)


def gated_linear(
    x: Float[Array, "*rows I"],
    weight: Weight,
    bias: Float[Array, "O"] | None = None,
    *,
    norm: tuple[Float[Array, " I"], float] | None = None,
    following: Following = None,
) -> Float[Array, "*rows F"]:
    """SwiGLU, `silu(gate) * up`, of x or of `norm(x)`; the weight holds the rows of gate, then those of up.

    Args:
        following: weight of the product that alone reads the result. The kernel then rounds as that product would.
    """

    def kernel():
        return _skinny(x, weight, bias, norm=norm, swiglu=True, out_dtype=_rounds_to(following))

    def otherwise():
        return silu_gate(linear(x, weight, bias, norm=norm))

    return choose(_op(weight), kernel, otherwise)


def takes_norm(weight: Weight, num_rows: int) -> bool:
    """Whether a product with this weight normalises its rows on the way."""
    return normalises(_op(weight), num_rows)


def add_norm(
    x: Float[Array, "*rows D"],
    delta: Float[Array, "*rows D"],
    norm: tuple[Float[Array, " D"], float],
    following: Following = None,
) -> tuple[Float[Array, "*rows D"], Float[Array, "*rows D"]]:
    """`x + delta`, and its RMSNorm: what lies between two products that XLA does.

    Args:
        following: weight of the product that alone reads the norm, as in `gated_linear`.
    """

    def kernel():
        from pallas_kernels.residual_rms_norm import residual_rms_norm

        rows = (array.reshape(-1, array.shape[-1]) for array in (x, delta))
        results = residual_rms_norm(*rows, *norm, norm_dtype=_rounds_to(following))
        return tuple(array.reshape(x.shape) for array in results)

    def otherwise():
        total = x + delta
        return total, rms_norm(total, *norm)

    return choose("residual_norm", kernel, otherwise)


def silu_gate(gate_up: Float[Array, "*rows twice"]) -> Float[Array, "*rows F"]:
    """`silu(gate) * up` of `[gate, up]`."""

    def kernel():
        from pallas_kernels.swiglu import swiglu

        return swiglu(gate_up.reshape(-1, gate_up.shape[-1])).reshape(*gate_up.shape[:-1], -1)

    def otherwise():
        gate, up = jnp.split(gate_up, 2, axis=-1)
        return jax.nn.silu(gate) * up

    return choose("swiglu", kernel, otherwise)


def _op(weight: Weight) -> str:
    if not isinstance(weight, QuantizedWeight):
        return "matmul"
    return "fp8_matmul" if weight.is_fp8 else "int8_matmul"


def _rounds_to(following: Following) -> jnp.dtype | None:
    """fp8 if a product with this weight rounds its rows; None: it takes them as they are."""
    return FP8 if isinstance(following, QuantizedWeight) and following.is_fp8 else None


def _skinny(x, weight: Weight, bias, norm=None, **options):
    """The kernel on flat rows."""
    if weight.ndim != 2:
        raise NotImplementedError(f"the kernel reads weights [O, I], got {list(weight.shape)}")
    num_rows = math.prod(x.shape[:-1])
    if num_rows <= ROW_MULTIPLE:
        raise NotImplementedError(f"products of up to {ROW_MULTIPLE} rows are XLA's, got {num_rows}")
    from pallas_kernels.skinny_matmul import skinny_matmul

    if bias is not None:
        raise NotImplementedError("the kernel has no bias")
    if norm is not None and not takes_norm(weight, num_rows):
        # Of flat rows, as the kernel before left them, XLA makes one kernel; a reshape between would make it two.
        x, norm = rms_norm(x.reshape(-1, x.shape[-1]), *norm).reshape(x.shape), None
    result_dtype, scale = x.dtype, None
    if isinstance(weight, QuantizedWeight):
        if not (weight.is_reordered or weight.is_fp8):
            raise NotImplementedError(f"the kernel reads inputs in groups of 16, got {list(weight.shape)}")
        result_dtype = weight.result_dtype(x)
        x, weight, scale = weight.rounded(x), weight.values, weight.scale
    options["out_dtype"] = options.get("out_dtype") or result_dtype
    if options.get("residual") is not None:
        options["residual"] = options["residual"].reshape(-1, options["residual"].shape[-1])
    y = skinny_matmul(x.reshape(-1, x.shape[-1]), weight, scale=scale, norm=norm, **options)
    return y.reshape(*x.shape[:-1], -1)
