"""A target with a known law: its logits depend on the last token alone."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jetspec_jax.config import TargetConfig
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.target import Embedding, Target
from jetspec_jax.testing.tiny import tiny_config


class TableTarget(Target):
    """A `Target` in type and contract alone; row t's logits are `table[token_t]`.

    Args:
        logits: [V, V], row v holds the logits after token v (log-probabilities for a known law).
        nan_at: absolute position whose draw gets NaN logits, None for never.
        max_len: the context limit.
        eos_token_ids: ids that end the text.
    """

    def __init__(
        self,
        logits: Sequence[Sequence[float]] | np.ndarray,
        *,
        nan_at: int | None = None,
        max_len: int = 1024,
        eos_token_ids: tuple[int, ...] = (),
        dtype: DTypeLike = jnp.float32,
    ):
        table = jnp.asarray(logits, dtype)
        vocab_size = table.shape[0]
        self.table = nnx.Param(table[None])  # three axes, so that no layout for matrix products is chosen
        self.embed = Embedding(vocab_size, vocab_size + 1, dtype=jnp.float32, rngs=nnx.Rngs(0))
        self.nan_at = nan_at
        # The "residual stream" is one-hot(token) and the position: D = V + 1.
        self.config: TargetConfig = tiny_config(
            vocab_size=vocab_size,
            hidden_size=vocab_size + 1,
            num_layers=1,
            taps=(0,),
            max_position_embeddings=max_len,
            eos_token_ids=eos_token_ids,
        )

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the table."""
        return self.table[...].dtype

    @property
    def head_weight(self) -> Float[Array, "V D"]:
        """A head of the right shape for drafters that want one."""
        return self.embed.weight[...]

    def decoder(self) -> "TableDecoder":
        """The table as the draft side may use it."""
        return TableDecoder(self)

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """A cache of one layer and one head, kept so that lengths and writes can be checked."""
        return KVCache.zeros(
            num_layers=1, batch=batch, capacity=capacity, num_kv_heads=1, head_dim=1, dtype=jnp.float32
        )

    def __call__(
        self, tokens: Int[Array, "B T"], cache: KVCache
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T M D"], KVCache]:
        """Same contract as `Target.__call__`; the cache stores the tokens."""
        positions = cache.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
        one_hot = jax.nn.one_hot(tokens, self.config.vocab_size, dtype=jnp.float32)
        x = jnp.concatenate([one_hot, positions[:, :, None].astype(jnp.float32)], axis=-1)
        rows = tokens[:, :, None, None].astype(jnp.float32)
        return x, x[:, :, None], cache.write(0, rows, rows)

    def logits(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """The table's row of each token."""
        logits = jnp.take(self.table[0], jnp.argmax(x[..., :-1], axis=-1), axis=0).astype(jnp.float32)
        if self.nan_at is None:
            return logits
        is_nan = x[..., -1] + 1 == self.nan_at  # the row at position p draws position p + 1
        return jnp.where(is_nan[..., None], jnp.nan, logits)


class TableDecoder(Decoder):
    """A `Decoder` without layers: the tapped state of a row says everything about its logits."""

    def __init__(self, target: TableTarget):
        super().__init__(target.config, target.embed, nnx.List(), None, target.embed)
        self.target = target

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the table."""
        return self.target.dtype

    def logits(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """The table's row of each token."""
        return self.target.logits(x)


def counting_target(vocab_size: int, **options: Any) -> TableTarget:
    """A `TableTarget` whose greedy text is known: after token t comes t + 1, after the last one 0."""
    return TableTarget(9.0 * np.roll(np.eye(vocab_size), 1, axis=1), **options)
