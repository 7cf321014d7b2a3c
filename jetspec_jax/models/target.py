"""Dense decoder-only target (Llama family, Qwen3): embedding, layers over a static cache, tapped outputs, head."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jetspec_jax.config import TargetConfig
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.layers import DecoderLayer, Linear, RMSNorm
from jetspec_jax.ops.attention import attend_cached
from jetspec_jax.ops.kernels import missing_rows
from jetspec_jax.ops.linear import linear
from jetspec_jax.ops.norm_rope import rope_angles
from jetspec_jax.ops.project import Weight, take_rows


class Embedding(nnx.Module):
    """Token embedding table [V, D]."""

    def __init__(self, vocab_size: int, size: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        init = jax.random.normal(rngs.params(), (vocab_size, size), jnp.float32) * size**-0.5
        self.weight = nnx.Param(init.astype(dtype))

    def __call__(self, tokens: Int[Array, "*rows"]) -> Float[Array, "*rows D"]:
        """Looks tokens up."""
        return take_rows(self.weight[...], tokens)


class Target(nnx.Module):
    """The model whose text is decoded. Call it with a block of tokens that continue a cache."""

    def __init__(self, config: TargetConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        shape = config.shape
        self.config = config
        self.embed = Embedding(config.vocab_size, shape.hidden_size, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(DecoderLayer(shape, dtype=dtype, rngs=rngs) for _ in range(config.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, dtype=dtype)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Linear(shape.hidden_size, config.vocab_size, bias=False, dtype=dtype, rngs=rngs)
        )

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the weights and of the residual stream."""
        return self.embed.weight[...].dtype

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache with `capacity` slots per request."""
        shape = self.config.shape
        return KVCache.zeros(
            num_layers=self.config.num_layers,
            batch=batch,
            capacity=capacity,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=self.dtype,
        )

    def __call__(
        self, tokens: Int[Array, "B T"], cache: KVCache
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T M D"], KVCache]:
        """Runs T tokens at positions `cache.length .. cache.length + T - 1` of each request.

        Returns:
            The residual stream after the last layer (before the final norm), the M tapped layer outputs, and the
            cache with the T rows written but not committed.
        """
        num_rows = tokens.shape[1]
        # Rows of padding are written above the others, where slots are garbage anyway, and dropped at the end.
        tokens = jnp.pad(tokens, ((0, 0), (0, missing_rows(*tokens.shape))))
        positions = cache.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
        by_kind = {
            kind: (
                rope,
                rope_angles(positions, rope, self.config.shape.head_dim),
                self.config.sliding_window if kind != "full_attention" else None,
            )
            for kind, rope in self.config.ropes
        }
        x = self.embed(tokens)
        taps = []
        for index, layer in enumerate(self.layers):
            rope, angles, window = by_kind[self.config.layer_types[index]]
            q, cache = layer.queries_and_cache(x, angles, rope, cache, index)
            x = layer.finish(x, attend_cached(q, cache.keys[index], cache.values[index], positions, window))
            if index in self.config.taps:
                taps.append(x)
        return x[:, :num_rows], jnp.stack(taps, axis=2)[:, :num_rows], cache

    def decoder(self) -> Decoder:
        """The part of the target that the draft side uses; modules and arrays are shared, not copied."""
        above = self.layers[self.config.taps[-1] + 1 :]
        return Decoder(self.config, self.embed, nnx.List(above), self.norm, self.lm_head)

    @property
    def head_weight(self) -> Weight:
        """The LM head, the embedding itself when tied; see `ops/project.py` for its forms."""
        return self.embed.weight[...] if self.lm_head is None else self.lm_head.weight[...]

    def logits(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Final norm and head, fp32."""
        return linear(x, self.head_weight, norm=self.norm.arguments, out_dtype=jnp.float32)
