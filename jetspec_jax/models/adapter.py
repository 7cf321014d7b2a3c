"""The adapter: predicts the tapped target states of a block that the target has not run yet (handbook 7.4).

Module j predicts the outputs of tapped layer j from those of tapped layer j-1, the first from token embeddings. At
context positions a module reads the true states, so it is an ordinary causal transformer over a cache; in a block it
reads what the module below predicts. All layers have the target's own shape, and there is nothing else: no projections.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jetspec_jax.config import AdapterConfig
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.layers import DecoderLayer
from jetspec_jax.models.stack import LayerKind, Segment, cache_for, run_blocks, run_segments
from jetspec_jax.models.target import Target


class Adapter(nnx.Module):
    """A chain of modules, each a short stack of target-shaped layers."""

    def __init__(self, config: AdapterConfig, chain: Sequence[Sequence[DecoderLayer]]):
        self.config = config
        self.chain = nnx.List(nnx.List(module) for module in chain)

    @classmethod
    def random(cls, config: AdapterConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> "Adapter":
        """Untrained layers."""
        sizes = config.layers_per_module
        return cls(config, [[DecoderLayer(config.shape, dtype=dtype, rngs=rngs) for _ in range(n)] for n in sizes])

    @classmethod
    def from_target(cls, target: Target, config: AdapterConfig) -> "Adapter":
        """An adapter whose layers are copies of the target's, evenly spaced within each segment between taps.

        A module as long as its segment predicts its tap exactly, unless the target has sliding-window layers: adapter
        layers see the whole context.
        """
        if len(config.layers_per_module) != len(target.config.taps):
            raise ValueError(f"{len(config.layers_per_module)} modules for the taps {target.config.taps}")
        below, chain = -1, []
        for size, tap in zip(config.layers_per_module, target.config.taps, strict=True):
            chosen = np.round(np.linspace(below + 1, tap, size)).astype(int) if size > 1 else [tap]
            # Clones: a layer that is chosen twice must not be one module in two places.
            chain.append([nnx.clone(target.layers[int(index)]) for index in chosen])
            below = tap
        return cls(config, chain)

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the weights; may differ from the target's."""
        return self.chain[0][0].attention_norm.scale[...].dtype

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for the layers of all modules, in chain order."""
        return cache_for([layer for module in self.chain for layer in module], batch, capacity)

    def extend(
        self,
        embedded: Float[Array, "B T D"],
        taps: Float[Array, "B T M D"],
        start: Int[Array, "B"],
        cache: KVCache,
        block: Segment | None = None,
    ) -> tuple[Float[Array, "B U M D"] | None, KVCache]:
        """Takes in T context rows with true states, and runs a block after them in the same read of the weights.

        Rows that are not kept may follow the kept ones in `embedded` and `taps`: the block's begin where they do.

        Args:
            embedded, taps: token embeddings and true tapped states of the context rows.
            start: position of the first of them.
            cache: keys of all modules; its length is not looked at.
            block: embeddings of the block and its position, None for the context rows alone.

        Returns:
            Predicted taps of the block's U rows (None without a block), and the cache with all keys written.
        """
        dtype = self.dtype
        below = None if block is None else block.x.astype(dtype)
        predicted, first = [], 0
        for index, module in enumerate(self.chain):
            inputs = embedded if index == 0 else taps[:, :, index - 1]
            segments = [Segment(inputs.astype(dtype), start)]
            if block is not None:
                segments.append(Segment(below, block.start))
            x, cache = run_segments(module, self._kinds(module), segments, cache, first)
            below = None if block is None else x
            predicted.append(x)
            first += len(module)
        return (None if block is None else jnp.stack(predicted, axis=2)), cache

    def predict(
        self, embedded: Float[Array, "B R T D"], cache: KVCache, start: Int[Array, "B R"]
    ) -> Float[Array, "B R T M D"]:
        """Predicted taps of R blocks per request, each seeing the cache slots below its start; nothing is kept."""
        x, predicted, first = embedded.astype(self.dtype), [], 0
        for module in self.chain:
            x = run_blocks(module, self._kinds(module), x, cache, start, first)
            predicted.append(x)
            first += len(module)
        return jnp.stack(predicted, axis=3)

    def _kinds(self, module: Sequence[DecoderLayer]) -> list[LayerKind]:
        return [LayerKind(self.config.rope)] * len(module)
