"""What a decoding round carries: frozen pytrees, donated each call, with a leading request axis."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.sampling import Draw, Logprobs
from jetspec_jax.models.cache import KVCache


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundState:
    """State of a batch between rounds. The last committed token, the anchor, has not been fed to the target yet.

    Invariant: `cache.length == length - 1`, and the same for the context of a drafter that keeps one.

    Attributes:
        tokens: [B, S], committed tokens up to `length`, garbage after it.
        length: [B], committed tokens, prompt included.
        prompt_len: [B].
        cache: the target's keys and values.
        draft: the drafter's own state, any pytree.
    """

    tokens: Int[Array, "B S"]
    length: Int[Array, "B"]
    prompt_len: Int[Array, "B"]
    cache: KVCache
    draft: Any

    @property
    def anchor(self) -> Int[Array, "B"]:
        """The last committed token of each row."""
        return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)[:, 0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundOutput:
    """What the host reads of a round, one round late.

    Attributes:
        tokens: [B, T], the target's draws; the first `num_committed` are committed.
        num_committed: [B], accepted drafts plus one; 0 for rows that are not active.
        num_drafted: [B], proposals that were real tokens (a drafter may have nothing to say).
        finite: [B, T], rows whose logits were usable.
        logprobs: of `tokens`, None unless asked for.
    """

    tokens: Int[Array, "B T"]
    num_committed: Int[Array, "B"]
    num_drafted: Int[Array, "B"]
    finite: Bool[Array, "B T"]
    logprobs: Logprobs | None

    @classmethod
    def of_draw(cls, draw: Draw, num_committed: Int[Array, "B"], num_drafted: Int[Array, "B"]) -> "RoundOutput":
        """Packs a draw with the counts."""
        return cls(draw.tokens, num_committed, num_drafted, draw.finite, draw.logprobs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ContextRows:
    """T rows that the target has just processed, for the drafter to learn from (prompt chunk or verified block).

    Attributes:
        tokens: [B, T], the rows' tokens.
        taps: [B, T, M, D], tapped target layer outputs of the rows.
        start: [B], absolute position of the first row.
        num_kept: [B], rows from the first on that belong to the committed text; the rest is garbage.
    """

    tokens: Int[Array, "B T"]
    taps: Float[Array, "B T M D"]
    start: Int[Array, "B"]
    num_kept: Int[Array, "B"]


def write_tokens(buffer: Int[Array, "B S"], rows: Int[Array, "B T"], start: Int[Array, "B"]) -> Int[Array, "B S"]:
    """Writes row b of `rows` at `start[b]`; it must fit, `dynamic_update_slice` would move it."""
    for b in range(buffer.shape[0]):
        buffer = jax.lax.dynamic_update_slice(buffer, rows[b : b + 1], (b, start[b]))
    return buffer
