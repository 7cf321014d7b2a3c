"""Modules whose projections and heads have 8 bits (`ops/quantized_weight.py`), for the draft side."""

from functools import partial

import jax
from flax import nnx
from jaxtyping import Array, Float

from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.layers import Linear
from jetspec_jax.ops.project import from_panels
from jetspec_jax.ops.quantized_weight import QuantizedFormat, QuantizedWeight


def quantized[M: nnx.Module](module: M, weight_format: QuantizedFormat = "int8") -> M:
    """A copy of a module with 8 bits a weight in every `Linear`, and in the embedding if a decoder has its head there.

    Norms, biases and embeddings that are only looked up stay as they are, and are shared. The copy cannot be trained.
    """
    copy = nnx.clone(module)
    holders = [node for _, node in nnx.iter_modules(copy) if isinstance(node, Linear)]
    if isinstance(copy, Decoder) and copy.lm_head is None:
        holders.append(copy.embed)
    for holder in holders:
        holder.weight = nnx.Param(_quantize(holder.weight[...], weight_format))
    return copy


@partial(jax.jit, static_argnums=1)  # so that no fp32 copy of a matrix lies in memory
def _quantize(
    weight: Float[Array, "O I"] | Float[Array, "panels I P"], weight_format: QuantizedFormat
) -> QuantizedWeight:
    return QuantizedWeight.of(from_panels(weight), weight_format)
