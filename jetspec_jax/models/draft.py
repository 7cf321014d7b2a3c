"""The parallel block draft: a few Qwen3-shaped layers conditioned on tapped target states by KV injection.

Context rows have no residual stream: each layer projects keys and values straight from one shared feature
`c_t = RMSNorm(W_fc [h^(l_1)_t ; ... ; h^(l_m)_t])` (handbook 1.3). Embedding and head are the target's, by reference.
"""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jetspec_jax.config import DraftConfig
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.layers import DecoderLayer, Linear, RMSNorm
from jetspec_jax.ops.attention import attend, causal_mask
from jetspec_jax.ops.norm_rope import rope_angles


class Draft(nnx.Module):
    """Predicts a whole block in one pass, given the context strictly before the block's anchor."""

    def __init__(self, config: DraftConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        shape = config.shape
        self.config = config
        self.fc = Linear(config.num_taps * shape.hidden_size, shape.hidden_size, bias=False, dtype=dtype, rngs=rngs)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, dtype=dtype)
        self.layers = nnx.List(DecoderLayer(shape, dtype=dtype, rngs=rngs) for _ in range(config.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, dtype=dtype)

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the weights; may differ from the target's."""
        return self.fc.weight[...].dtype

    def extend(self, context: KVCache, taps: Float[Array, "B T M D"]) -> KVCache:
        """Writes the injected keys and values of T new context rows, without committing them."""
        features = self.hidden_norm(self.fc(taps.reshape(*taps.shape[:2], -1).astype(self.dtype)))
        angles = self._angles(context, taps.shape[1])
        for index, layer in enumerate(self.layers):
            keys, values = layer.attention.keys_values(features, angles, self.config.rope)
            context = context.write(index, keys, values)
        return context

    def __call__(self, x: Float[Array, "B T D"], context: KVCache) -> tuple[Float[Array, "B T D"], KVCache]:
        """One pass over a block whose row 0, the anchor, stands at position `context.length`.

        Args:
            x: embedded block rows.
            context: true context before the anchor; the block's own keys go above its length and are not kept.

        Returns:
            Normalised hidden states, ready for the target's head, and the context with garbage above its length (so
            that donated buffers need no copy).
        """
        num_rows = x.shape[1]
        angles = self._angles(context, num_rows)
        positions = context.length[:, None] + jnp.arange(num_rows, dtype=jnp.int32)[None, :]
        if not self.config.causal:
            positions = jnp.broadcast_to(positions[:, -1:], positions.shape)  # every row sees the whole block
        mask = causal_mask(positions, context.capacity)
        x = x.astype(self.dtype)
        for index, layer in enumerate(self.layers):
            q, k, v = layer.attention.queries_keys_values(layer.attention_norm(x), angles, self.config.rope)
            context = context.write(index, k, v)
            x = layer.finish(x, attend(q, context.keys[index], context.values[index], mask))
        return self.norm(x), context

    def _angles(self, context: KVCache, num_rows: int) -> Float[Array, "B T half"]:
        positions = context.length[:, None] + jnp.arange(num_rows, dtype=jnp.int32)[None, :]
        return rope_angles(positions, self.config.rope, self.config.shape.head_dim)
