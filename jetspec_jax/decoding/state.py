"""What a decoding round carries: frozen pytrees, donated each call, with a leading request axis."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.sampling import Draw, Logprobs
from jetspec_jax.models.cache import KVCache, update_rows
from jetspec_jax.models.target import Target


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundState:
    """The target's side of a batch between rounds. The last committed token, the anchor, has not been fed to it yet.

    Invariant: `cache.length == length - 1`, and the same for the context of a drafter that keeps one.

    Attributes:
        tokens: [B, S], committed tokens up to `length`, garbage after it.
        length: [B], committed tokens, prompt included.
        prompt_len: [B].
        request: [B], a number no other request has; with `round` it names a verification.
        round: [B], verifications so far.
        cache: the target's keys and values.
    """

    tokens: Int[Array, "B S"]
    length: Int[Array, "B"]
    prompt_len: Int[Array, "B"]
    request: Int[Array, "B"]
    round: Int[Array, "B"]
    cache: KVCache

    @classmethod
    def empty(
        cls, target: Target, tokens: Int[Array, "B S"], prompt_len: Int[Array, "B"], request: Int[Array, "B"]
    ) -> "RoundState":
        """A batch whose prompts have not been processed; every array is a buffer of its own, as all are donated."""
        batch, capacity = tokens.shape
        return cls(
            tokens=tokens + 0,
            length=prompt_len + 0,
            prompt_len=prompt_len + 0,
            request=request + 0,
            round=jnp.zeros((batch,), jnp.int32),
            cache=target.init_cache(batch, capacity),
        )

    @property
    def anchor(self) -> Int[Array, "B"]:
        """The last committed token of each row."""
        return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)[:, 0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftReport:
    """How the proposal of a round had been made, and how far each refinement pass had it right.

    Attributes:
        is_hit: [B], it came from the outcome cache.
        mass: [B], hit rate its outcome cache expected.
        is_refined: [B], all passes were made (a miss may be drafted with one pass, which then stands for all).
        right_by_pass: [B, P, G], whether pass p had this draft and all before it right, as far as known (up to one more
            than the accepted ones).
        passes, num_fixed, proxies: the refinement trace (`decoding/proposal.py`) without outcome axis, None unless
            asked for.
    """

    is_hit: Bool[Array, "B"]
    mass: Float[Array, "B"]
    is_refined: Bool[Array, "B"]
    right_by_pass: Bool[Array, "B P G"]
    passes: Int[Array, "B P G"] | None = None
    num_fixed: Int[Array, "B P"] | None = None
    proxies: Int[Array, "B m G"] | None = None


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
        draft: about the proposal, None when nothing was drafted.
    """

    tokens: Int[Array, "B T"]
    num_committed: Int[Array, "B"]
    num_drafted: Int[Array, "B"]
    finite: Bool[Array, "B T"]
    logprobs: Logprobs | None
    draft: DraftReport | None = None

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

    def check_taps(self, num_taps: int, width: int) -> None:
        """Refuses (ValueError) taps of another number or width than a draft reads."""
        if (found := self.taps.shape[2:]) != (num_taps, width):
            raise ValueError(
                f"the draft reads {num_taps} taps of width {width}, the target gives {found[0]} of width {found[1]}"
            )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Verdict:
    """What a verification tells the draft side: the outcome, and the true states of the rows that were kept.

    Attributes:
        request, round: [B], which verification it was.
        num_accepted: [B], k; -1 for rows that are not active.
        anchor: [B], the token after the accepted drafts, the next anchor.
        rows: the verified block.
    """

    request: Int[Array, "B"]
    round: Int[Array, "B"]
    num_accepted: Int[Array, "B"]
    anchor: Int[Array, "B"]
    rows: ContextRows

    @classmethod
    def of_round(cls, before: RoundState, after: RoundState, rows: ContextRows) -> "Verdict":
        """The verdict of the verification that led from one state to the other."""
        return cls(before.request, before.round, rows.num_kept - 1, after.anchor, rows)

    @property
    def is_active(self) -> Bool[Array, "B"]:
        """Rows that committed something."""
        return self.num_accepted >= 0


def write_tokens(buffer: Int[Array, "B S"], rows: Int[Array, "B T"], start: Int[Array, "B"]) -> Int[Array, "B S"]:
    """Writes row b of `rows` at `start[b]`; it must fit, `dynamic_update_slice` would move it."""
    return update_rows(buffer, rows, start, axis=1)
