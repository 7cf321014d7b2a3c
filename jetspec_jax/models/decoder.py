"""The decoder: what the draft side needs of the frozen target, shared by reference.

Embedding, the layers above the deepest tap, final norm and head (handbook 7.5). It turns predicted states of the
deepest tapped layer into the target's next-token logits, and lends embedding and head to the draft. On one device its
arrays are the target's own; on a second device it is the only part of the target that must be copied there.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jetspec_jax.config import TargetConfig
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.layers import DecoderLayer, RMSNorm
from jetspec_jax.models.stack import LayerKind, Segment, cache_for, run_blocks, run_segments
from jetspec_jax.ops.linear import linear
from jetspec_jax.ops.project import Weight


class Decoder(nnx.Module):
    """The top of a target over its own cache; `Target.decoder()` builds it."""

    def __init__(
        self, config: TargetConfig, embed: nnx.Module, layers: Sequence[DecoderLayer], norm: RMSNorm | None, lm_head
    ):
        self.config = config
        self.embed = embed
        self.layers = layers
        self.norm = norm
        self.lm_head = lm_head

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the weights and of the residual stream."""
        return self.embed.weight[...].dtype

    @property
    def head_weight(self) -> Weight:
        """The LM head, the embedding itself when tied; see `ops/project.py` for its forms."""
        return self.embed.weight[...] if self.lm_head is None else self.lm_head.weight[...]

    def logits(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Final norm and head, fp32."""
        return linear(x, self.head_weight, norm=self.norm.arguments, out_dtype=jnp.float32)

    def head(self, hidden: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """The head alone on states that are normalised already (the draft's), fp32."""
        return linear(hidden.astype(self.dtype), self.head_weight, out_dtype=jnp.float32)

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache of the layers above the deepest tap; there may be none."""
        if not self.layers:
            return KVCache(keys=(), values=(), length=jnp.zeros((batch,), jnp.int32))
        return cache_for(self.layers, batch, capacity)

    def extend(self, segments: list[Segment], cache: KVCache) -> tuple[Float[Array, "B _ D"], KVCache]:
        """Runs states of the deepest tapped layer through the layers, keeping their keys.

        Returns:
            The residual stream of the last segment before the final norm, and the cache.
        """
        return run_segments(self.layers, self._kinds(), segments, cache, 0)

    def predict(
        self, states: Float[Array, "B R T D"], cache: KVCache, start: Int[Array, "B R"]
    ) -> Float[Array, "B R T V"]:
        """Next-token logits of R blocks from the states of the deepest tapped layer; nothing is kept."""
        return self.head(self.hidden(states, cache, start))

    def hidden(
        self, states: Float[Array, "B R T D"], cache: KVCache, start: Int[Array, "B R"]
    ) -> Float[Array, "B R T D"]:
        """What the head reads of R blocks: layers above the deepest tap, then the final norm."""
        return self.norm(run_blocks(self.layers, self._kinds(), states, cache, start, 0))

    def _kinds(self) -> list[LayerKind]:
        first = self.config.num_layers - len(self.layers)
        return [
            LayerKind(self.config.rope_of(index), self.config.window_of(index))
            for index in range(first, self.config.num_layers)
        ]
