"""One pass of the parallel block draft per round (J0), on the critical path with true target states.

The same class serves the causal token-input draft of JetSpec++ and the mask-input drafts of JetSpec and DFlash: the
`DraftConfig` says which.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key

from jetspec_jax.config import TargetConfig, draft_config_for
from jetspec_jax.decoding.sampling import position_noise
from jetspec_jax.decoding.state import ContextRows
from jetspec_jax.drafters.protocol import DraftView
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import Leaves, place, split
from jetspec_jax.models.target import Target
from jetspec_jax.ops.first_argmax import first_argmax
from jetspec_jax.ops.project import project

# Folded into a request's key before anything but the draw's position noise is drawn from it. Positions stay below
# 2^31, so the streams never meet.
INPUT_NOISE_STREAM = 2**32 - 1


class ParallelDrafter:
    """Drafts `num_drafts` tokens in one pass; its state is the context cache.

    Args:
        draft: the draft network.
        num_drafts: γ; at most `draft.config.max_draft_len` unless the draft is causal, which extrapolates.
        couple_noise: at T > 0 add the position's own noise before the arg-max, so that drafts agree with the
            target's draw more often (`design.md` section 4). The text does not depend on it.
        max_len: longest context the draft was trained for, None for any.
    """

    name = "parallel"

    def __init__(
        self, draft: Draft, *, num_drafts: int | None = None, couple_noise: bool = True, max_len: int | None = None
    ):
        self.config = draft.config
        self.num_drafts = self.config.max_draft_len if num_drafts is None else num_drafts
        if self.num_drafts < 1 or (not self.config.causal and self.num_drafts > self.config.max_draft_len):
            raise ValueError(f"num_drafts={num_drafts} with a draft of {self.config.block_rows} rows")
        self.couple_noise = couple_noise
        self.max_len = max_len
        self._definition, self._leaves = split(draft)
        self._dtype = draft.dtype

    @classmethod
    def random(cls, target: TargetConfig, *, dtype: DTypeLike, seed: int = 0, **options: Any) -> "ParallelDrafter":
        """An untrained draft for a target: right text, about one token a round."""
        draft = Draft(draft_config_for(target), dtype=dtype, rngs=nnx.Rngs(seed))
        return cls(draft, **options)

    def place(self, device: jax.Device) -> Leaves:
        """The draft's weights on a device."""
        return place(self._leaves, device)

    def init_state(self, batch: int, capacity: int) -> KVCache:
        """An empty context."""
        return KVCache.zeros(
            num_layers=self.config.num_layers,
            batch=batch,
            capacity=capacity,
            num_kv_heads=self.config.shape.num_kv_heads,
            head_dim=self.config.shape.head_dim,
            dtype=self._dtype,
        )

    def propose(
        self, leaves: Leaves, target: Target, state: KVCache, view: DraftView
    ) -> tuple[Int[Array, "B G"], KVCache]:
        """One pass over [anchor, noise or mask ...]; the arg-max of each predicting row."""
        draft = self._definition.merge(leaves)
        if (self.config.mask_token_id or 0) >= target.config.vocab_size:
            raise ValueError(
                f"mask_token_id={self.config.mask_token_id}, but the target has {target.config.vocab_size} ids"
            )
        hidden, state = draft(target.embed(self._block(view)), state)
        hidden = hidden[:, : self.num_drafts] if self.config.shift else hidden[:, 1:]
        logits = project(hidden.astype(target.dtype), target.head_weight, out_dtype=jnp.float32)
        return first_argmax(self._coupled(logits, view))[0], state

    def observe(self, leaves: Leaves, target: Target, state: KVCache, rows: ContextRows) -> KVCache:
        """Appends the kept rows to the context."""
        if rows.taps.shape[2:] != (self.config.num_taps, self.config.shape.hidden_size):
            raise ValueError(
                f"the draft reads {self.config.num_taps} taps of width {self.config.shape.hidden_size}, "
                f"the target gives {rows.taps.shape[2]} of width {rows.taps.shape[3]}"
            )
        context = self._definition.merge(leaves).extend(state.with_length(rows.start), rows.taps)
        return context.commit(rows.num_kept)

    def _block(self, view: DraftView) -> Int[Array, "B T"]:
        """Row 0 is the anchor; the others carry noise tokens from the committed prefix, or the mask token."""
        num_rows = self.num_drafts if self.config.shift else self.num_drafts + 1
        if self.config.inputs == "mask":
            noise = jnp.full((view.tokens.shape[0], num_rows), self.config.mask_token_id, jnp.int32)
        else:
            noise = jax.vmap(_noise_tokens, in_axes=(0, 0, 0, None))(
                view.params.key, view.tokens, view.length, num_rows
            )
        anchor = jnp.take_along_axis(view.tokens, view.length[:, None] - 1, axis=1)
        return jnp.concatenate([anchor, noise[:, 1:]], axis=1)

    def _coupled(self, logits: Float[Array, "B G V"], view: DraftView) -> Float[Array, "B G V"]:
        if not (self.couple_noise and view.spec.samples):
            return logits
        positions = view.length[:, None] + jnp.arange(self.num_drafts, dtype=jnp.int32)[None, :]
        temperature = view.params.temperature[:, None, None]
        return logits + temperature * position_noise(view.params.key, positions, logits.shape[-1])


def _noise_tokens(
    key: Key[Array, ""], tokens: Int[Array, "S"], length: Int[Array, ""], num_rows: int
) -> Int[Array, "T"]:
    """Tokens at uniformly random positions of the committed prefix, anchor included (handbook 7.2)."""
    key = jax.random.fold_in(jax.random.fold_in(key, jnp.uint32(INPUT_NOISE_STREAM)), length)
    return tokens[jax.random.randint(key, (num_rows,), 0, length)]
