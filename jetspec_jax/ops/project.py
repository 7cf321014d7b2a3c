"""Matrix products of activations with weights stored as [out, in], quantised or not, or in panels of outputs.

Panels [O / P, I, P] hold P consecutive outputs side by side. XLA's CPU backend packs a 2-D weight anew at every call;
panels are what it wants to read, so one row comes at memory speed and a block of rows costs little more
(`docs/lab-notes.md`, 2026-11-30). On GPU weights stay 2-D.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jetspec_jax.ops.products import HIGHEST
from jetspec_jax.ops.quantized_weight import QuantizedWeight

# What a module's projection may hold.
Weight = Float[Array, "O I"] | Float[Array, "panels I P"] | QuantizedWeight

# A panel has this many outputs at most, and fewer where the input is so wide that it would outgrow the second-level
# cache (measured: 32 for 576 inputs, 16 for 1,536; 8, 24, 48 and 64 are slower).
PANEL_OUTPUTS, PANEL_BYTES = 32, 96 * 1024


def project(x: Float[Array, "*rows I"], weight: Weight, out_dtype: DTypeLike | None = None) -> Float[Array, "*rows O"]:
    """`x W^T`, contracted over the input axis of both; the result has the dtype of x unless given.

    Args:
        x: rows; with an fp8 weight also rounded already: the result then has the dtype of the weight it stands for.
    """
    if isinstance(weight, QuantizedWeight):
        # 8 bits are exact in bf16; the scale, one an output, comes after the sum.
        wide = weight.result_dtype(x)
        values, rows = weight.values.astype(wide), weight.in_order(weight.rounded(x)).astype(wide)
        y = jnp.einsum("...i,oi->...o", rows, values, precision=HIGHEST, preferred_element_type=jnp.float32)
        return (y * jnp.expand_dims(weight.scale, range(y.ndim - 1))).astype(out_dtype or wide)
    out_dtype = out_dtype or x.dtype
    if weight.ndim == 2:
        return jnp.einsum("...i,oi->...o", x, weight, precision=HIGHEST, preferred_element_type=out_dtype)
    # Two products of one weight in one program (two passes of a draft, say) would otherwise share the broadcast below,
    # and what is shared is stored: rows times the weight.
    rows, weight = jax.lax.optimization_barrier((x.reshape(-1, x.shape[-1]), weight))
    # Written as a sum of products, which the compiler turns into one loop nest over the panels; a dot would be packed.
    products = weight[:, None] * rows[None, :, :, None]  # [panels, rows, I, P], never in memory
    y = jnp.sum(products, axis=2, dtype=out_dtype)  # [panels, rows, P]
    return jnp.swapaxes(y, 0, 1).reshape(*x.shape[:-1], -1)


def take_rows(table: Weight, ids: Int[Array, "*rows"]) -> Float[Array, "*rows I"]:
    """Rows of a weight, that is embeddings; ids outside the table take the nearest row (never used for text)."""
    if isinstance(table, QuantizedWeight):
        rows = table.in_natural_order(jnp.take(table.values, ids, axis=0, mode="clip")).astype(jnp.float32)
        return (rows * jnp.take(table.scale, ids, axis=0, mode="clip")[..., None]).astype(table.dtype)
    if table.ndim == 2:
        return jnp.take(table, ids, axis=0, mode="clip")
    panels, _, width = table.shape
    ids = jnp.clip(ids, 0, panels * width - 1)
    return table[ids // width, :, ids % width]


def project_from(x: Float[Array, "*rows I"], weight: Weight, start: int) -> Float[Array, "*rows O2"]:
    """Outputs `start ..` of a projection, without computing the ones before where that is cheaper."""
    if isinstance(weight, QuantizedWeight):
        # XLA would write the slice out as floats before the product (seen in the HLO for an H200).
        return project(x, weight)[..., start:]
    if weight.ndim == 2:
        return project(x, weight[start:])
    panel, rest = divmod(start, weight.shape[2])
    return project(x, weight[panel:])[..., rest:]


def panel_width(num_outputs: int, num_inputs: int, itemsize: int) -> int | None:
    """Outputs per panel for a weight; None if it does not divide into panels of at least 16."""
    for width in (PANEL_OUTPUTS, PANEL_OUTPUTS // 2):
        is_small = width * num_inputs * itemsize <= PANEL_BYTES or width == PANEL_OUTPUTS // 2
        if is_small and num_outputs % width == 0:
            return width
    return None


def from_panels(weight: Float[Array, "O I"] | Float[Array, "panels I P"]) -> Float[Array, "O I"]:
    """A weight of either layout as [O, I]."""
    return weight if weight.ndim == 2 else jnp.swapaxes(weight, 1, 2).reshape(-1, weight.shape[1])


def to_panels(weight: np.ndarray) -> np.ndarray:
    """[O, I] as panels [O / P, I, P]; anything that is not such a matrix stays as it is."""
    if weight.ndim != 2 or weight.dtype != np.float32 or (width := panel_width(*weight.shape, weight.itemsize)) is None:
        return weight
    return np.ascontiguousarray(weight.reshape(-1, width, weight.shape[1]).swapaxes(1, 2))
