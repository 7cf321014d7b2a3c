"""Weight-only int8: matrices stored as integers with one scale an output, multiplied in the activations' dtype.

For the draft side alone: there a rounded weight can change proposals, never the text.
"""

from dataclasses import dataclass, field
from types import EllipsisType

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int8, Shaped

from pallas_kernels.fragment_order import GROUP, fragment_order, natural_order

_MOST = 127


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedWeight:
    """`w = scale * values`, symmetric, row by row; no element is off by more than half its row's scale.

    Attributes:
        values: [O, I], the inputs in the order in which GPU kernels read them (`pallas_kernels/fragment_order.py`) if
            they divide into its groups, else in their own.
        scale: [O], fp32; the largest magnitude of a row over 127.
        dtype: of the weight it stands for, and of what is looked up in it.
    """

    values: Int8[Array, "O I"]
    scale: Float[Array, "O"]
    dtype: DTypeLike = field(metadata={"static": True})

    @classmethod
    def of(cls, weight: Float[Array, "O I"]) -> "QuantizedWeight":
        """Quantises a matrix; a row of zeros has scale 1."""
        wide = weight.astype(jnp.float32)
        largest = jnp.max(jnp.abs(wide), axis=1)
        scale = jnp.where(largest > 0, jnp.maximum(largest / _MOST, jnp.finfo(jnp.float32).tiny), 1.0)
        values = jnp.clip(jnp.round(wide / scale[:, None]), -_MOST, _MOST).astype(jnp.int8)
        values = fragment_order(values) if values.shape[1] % GROUP == 0 else values
        return cls(values, scale, jnp.dtype(weight.dtype))

    @property
    def is_reordered(self) -> bool:
        """Whether the inputs are in fragment order."""
        return self.values.shape[1] % GROUP == 0

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
