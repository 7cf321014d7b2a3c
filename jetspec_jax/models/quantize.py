"""Modules whose projections and heads are int8 (`ops/quantized_weight.py`), for the draft side."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.layers import Linear
from jetspec_jax.ops.project import from_panels
from jetspec_jax.ops.quantized_weight import QuantizedWeight


def quantized[M: nnx.Module](module: M) -> M:
    """A copy of a module with int8 weights in every `Linear`, and in the embedding if a decoder's head is tied to it.

    Norms, biases and embeddings that are only looked up stay as they are, and are shared. The copy cannot be trained.
    """
    copy = nnx.clone(module)
    holders = [node for _, node in nnx.iter_modules(copy) if isinstance(node, Linear)]
    if isinstance(copy, Decoder) and copy.lm_head is None:
        holders.append(copy.embed)
    for holder in holders:
        holder.weight = nnx.Param(_quantize(holder.weight[...]))
    return copy


@jax.jit  # so that no fp32 copy of a matrix lies in memory
def _quantize(weight: Float[Array, "O I"] | Float[Array, "panels I P"]) -> QuantizedWeight:
    return QuantizedWeight.of(from_panels(weight))
