"""Matrices in 8 bits with one scale an output: integers, or floating point that is multiplied as it is.

For the draft side alone: there a rounded weight can change proposals, never the text. *int8* keeps the activations'
dtype: about 1 % of rounding, but a GPU has to make bf16 of every element first. *fp8* (e4m3: 4 bits of exponent, 3 of
mantissa) rounds the activations too, about 3 % each, and is multiplied without a conversion.
"""

from dataclasses import dataclass, field
from types import EllipsisType
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float8e4m3fn, Int8, Shaped

from pallas_kernels.fp8 import FP8, MOST_FP8, to_fp8
from pallas_kernels.fragment_order import GROUP, fragment_order, natural_order

QuantizedFormat = Literal["int8", "fp8"]
MOST_INT8 = 127  # the largest magnitude
TINY = jnp.finfo(jnp.float32).tiny


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedWeight:
    """`w = scale * values`, symmetric, row by row.

    int8: no element is off by more than half its row's scale. fp8: by more than 1/16 of itself, or of what is 1/2^15 of
    its row's largest.

    Attributes:
        values: [O, I]; the inputs of int8 in the order in which GPU kernels read them
            (`pallas_kernels/fragment_order.py`) if they divide into its groups, else in their own.
        scale: [O], fp32; the largest magnitude of a row over that of the format, 127 or 448.
        dtype: of the weight it stands for, and of what is looked up in it.
    """

    values: Int8[Array, "O I"] | Float8e4m3fn[Array, "O I"]
    scale: Float[Array, "O"]
    dtype: DTypeLike = field(metadata={"static": True})

    @classmethod
    def of(cls, weight: Float[Array, "O I"], weight_format: QuantizedFormat = "int8") -> "QuantizedWeight":
        """Quantises a matrix; a row of zeros has scale 1."""
        wide = weight.astype(jnp.float32)
        largest, most = jnp.max(jnp.abs(wide), axis=1), MOST_FP8 if weight_format == "fp8" else MOST_INT8
        scale = jnp.where(largest > 0, jnp.maximum(largest / most, TINY), 1.0)
        scaled = wide / scale[:, None]
        if weight_format == "fp8":
            return cls(to_fp8(scaled), scale, jnp.dtype(weight.dtype))
        values = jnp.clip(jnp.round(scaled), -most, most).astype(jnp.int8)
        values = fragment_order(values) if values.shape[1] % GROUP == 0 else values
        return cls(values, scale, jnp.dtype(weight.dtype))

    @property
    def is_fp8(self) -> bool:
        """Whether activations are rounded too."""
        return self.values.dtype == FP8

    @property
    def is_reordered(self) -> bool:
        """Whether the inputs are in fragment order."""
        return not self.is_fp8 and self.values.shape[1] % GROUP == 0

    def rounded(self, x: Float[Array, "*rows I"]) -> Float[Array, "*rows I"]:
        """Activations as they are multiplied: fp8 with fp8, without a scale, 448 at most; else as they are."""
        return to_fp8(x) if self.is_fp8 and x.dtype != FP8 else x

    def result_dtype(self, x: Float[Array, "*rows I"]) -> jnp.dtype:
        """Of a product: that of the activations; if they are fp8 already, that of the weight it stands for."""
        return jnp.dtype(self.dtype if x.dtype == FP8 else x.dtype)

    def in_order(self, x: Shaped[Array, "*rows I"]) -> Shaped[Array, "*rows I"]:
        """Activations with their inputs in the order of `values`."""
        return fragment_order(x) if self.is_reordered else x

    def in_natural_order(self, rows: Shaped[Array, "*rows I"]) -> Shaped[Array, "*rows I"]:
        """Rows of `values` with their inputs as they were."""
        return natural_order(rows) if self.is_reordered else rows

    @property
    def ndim(self) -> int:
        """Axes, as of an array."""
        return self.values.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """[O, I], as of an array."""
        return self.values.shape

    def __getitem__(self, outputs: slice | EllipsisType) -> "QuantizedWeight":
        """A range of outputs; `weight[...]` is all of them, as for the arrays in a module's parameters."""
        return self if outputs is Ellipsis else QuantizedWeight(self.values[outputs], self.scale[outputs], self.dtype)
