"""The parallel block draft: a few Qwen3-shaped layers conditioned on tapped target states by KV injection.

Context rows have no residual stream: each layer projects keys and values straight from one shared feature
`c_t = RMSNorm(W_fc [h^(l_1)_t ; ... ; h^(l_m)_t])` (handbook 1.3). Embedding and head are the target's, by reference.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.config import DraftConfig
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.layers import DecoderLayer, Linear, RMSNorm
from jetspec_jax.models.stack import block_positions, cache_for, own_rows
from jetspec_jax.ops.attention import attend_blocks
from jetspec_jax.ops.norm_rope import rope_angles


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class InjectedRows:
    """Keys and values injected from states of a block's own rows (context refresh), one entry per draft layer.

    Attributes:
        keys, values: [B, R, K, U, H] each; row o belongs to the position `start + o` of its block.
    """

    keys: tuple[Float[Array, "B R K U H"], ...]
    values: tuple[Float[Array, "B R K U H"], ...]

    @property
    def num_rows(self) -> int:
        """U, injected rows per block."""
        return self.keys[0].shape[3]


class Draft(nnx.Module):
    """Predicts whole blocks in one pass, each given the context strictly before its anchor."""

    def __init__(self, config: DraftConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        shape = config.shape
        self.config = config
        self.fc = Linear(config.num_taps * shape.hidden_size, shape.hidden_size, bias=False, dtype=dtype, rngs=rngs)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, dtype=dtype)
        self.layers = nnx.List(DecoderLayer(shape, dtype=dtype, rngs=rngs) for _ in range(config.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, dtype=dtype)

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the activations; may differ from the target's."""
        return self.norm.scale[...].dtype

    def init_context(self, batch: int, capacity: int) -> KVCache:
        """An empty context of injected keys and values."""
        return cache_for(self.layers, batch, capacity)

    def extend(self, context: KVCache, taps: Float[Array, "B T M D"]) -> KVCache:
        """Writes the injected keys and values of T rows from `context.length` on, without committing them."""
        features = self._features(taps)
        positions = context.length[:, None] + jnp.arange(taps.shape[1], dtype=jnp.int32)[None, :]
        angles = self._angles(positions)
        for index, layer in enumerate(self.layers):
            keys, values = layer.attention.keys_values(features, angles, self.config.rope)
            context = context.write(index, keys, values)
        return context

    def inject(self, taps: Float[Array, "B R U M D"], start: Int[Array, "B R"]) -> InjectedRows:
        """Keys and values of states that only their own block may see."""
        batch, blocks, rows = taps.shape[:3]
        features = self._features(taps.reshape(batch, blocks * rows, *taps.shape[3:]))
        angles = self._angles(block_positions(start, rows).reshape(batch, -1))
        pairs = [layer.attention.keys_values(features, angles, self.config.rope) for layer in self.layers]
        return InjectedRows(
            keys=tuple(own_rows(keys, blocks) for keys, _ in pairs),
            values=tuple(own_rows(values, blocks, is_value=True) for _, values in pairs),
        )

    def __call__(
        self,
        x: Float[Array, "B R T D"],
        context: KVCache,
        start: Int[Array, "B R"],
        *,
        num_fixed: Int[Array, "B R"] | None = None,
        refreshed: InjectedRows | None = None,
        sees_fixed_rows: bool = False,
    ) -> Float[Array, "B R T D"]:
        """One pass over R blocks per request; row 0 of each, the anchor, stands at `start`.

        With `num_fixed` the first rows of a block are settled: row `num_fixed` is its effective anchor. The later rows
        then see, besides the context, the refreshed states of the rows before the effective anchor instead of those
        rows themselves: the geometry the draft was trained in (handbook 7.3).

        Args:
            x: embedded rows.
            context: injected keys; block r sees the slots below its start.
            start: position of each block's anchor.
            num_fixed: offset of the effective anchor; None for 0.
            refreshed: states of the block's own rows, visible below the effective anchor.
            sees_fixed_rows: rows before the effective anchor stay visible as block rows too.

        Returns:
            Normalised hidden states, ready for the target's head. Rows before the effective anchor mean nothing.
        """
        batch, blocks, rows, width = x.shape
        fixed = jnp.zeros_like(start) if num_fixed is None else num_fixed
        mask = self._own_mask(rows, fixed, 0 if refreshed is None else refreshed.num_rows, sees_fixed_rows)
        angles = self._angles(block_positions(start, rows).reshape(batch, -1))
        flat = x.astype(self.dtype).reshape(batch, -1, width)
        for index, layer in enumerate(self.layers):
            q, k, v = layer.queries_keys_values(flat, angles, self.config.rope)
            keys, values = own_rows(k, blocks), own_rows(v, blocks, is_value=True)
            if refreshed is not None:
                keys = jnp.concatenate([refreshed.keys[index], keys], axis=3)
                values = jnp.concatenate([refreshed.values[index], values], axis=3)
            q = q.reshape(batch, blocks, rows, *q.shape[2:])
            heads = attend_blocks(q, context.keys[index], context.values[index], start, keys, values, mask)
            flat = layer.finish(flat, heads.reshape(batch, -1, *heads.shape[3:]))
        return self.norm(flat).reshape(x.shape)

    def _own_mask(
        self, num_rows: int, fixed: Int[Array, "B R"], num_refreshed: int, sees_fixed_rows: bool
    ) -> Bool[Array, "B R T U"]:
        """Which of [refreshed rows, block rows] each block row sees."""
        query = jnp.arange(num_rows, dtype=jnp.int32)[None, None, :, None]
        key = jnp.arange(num_rows, dtype=jnp.int32)[None, None, None, :]
        anchor = fixed[:, :, None, None]
        visible = (key <= query) if self.config.causal else (key >= 0)
        # Rows before the effective anchor keep a view of their own: unused, but a softmax over nothing is NaN.
        visible = visible & ((key >= anchor) | (query < anchor) | sees_fixed_rows)
        refreshed = jnp.arange(num_refreshed, dtype=jnp.int32)[None, None, None, :]
        sees_refreshed = (refreshed < anchor) & (query >= anchor)
        return jnp.concatenate([sees_refreshed, visible], axis=-1)

    def _features(self, taps: Float[Array, "B T M D"]) -> Float[Array, "B T D"]:
        return self.hidden_norm(self.fc(taps.reshape(*taps.shape[:2], -1).astype(self.dtype)))

    def _angles(self, positions: Int[Array, "B T"]) -> Float[Array, "B T half"]:
        return rope_angles(positions, self.config.rope, self.config.shape.head_dim)
