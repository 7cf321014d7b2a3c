"""The draft side inside a trace: draft, predictor and decoder over their caches, for one or many blocks per request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jetspec_jax.decoding.evidence import Evidence
from jetspec_jax.decoding.proposal import Proposal
from jetspec_jax.decoding.refine import RENOISE, Guess, refine
from jetspec_jax.drafting_config import RefineConfig
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.draft import Draft, InjectedRows
from jetspec_jax.ops.first_argmax import first_argmax

# Folded into a request's key before anything but the draw's position noise is drawn from it. Positions stay below
# 2^31, so the streams never meet.
INPUT_NOISE_STREAM = 2**32 - 1


@dataclass(frozen=True)
class DraftSide:
    """Merged modules and their caches.

    Attributes:
        draft: the draft network.
        context: its injected keys.
        predict: `(rows [B, R, T], start [B, R]) -> (taps, logits)` of blocks that the target has not run; None if
            nothing predicts them.
        decoder: embedding and head of the target.
        evidence: what turns logits into statements about the draw.
        num_drafts: γ.
    """

    draft: Draft
    context: KVCache
    predict: Callable | None
    decoder: Decoder
    evidence: Evidence
    num_drafts: int

    def draft_blocks(
        self,
        anchors: Int[Array, "B R"],
        start: Int[Array, "B R"],
        noise: Int[Array, "B R W"],
        config: RefineConfig,
        *,
        with_logprobs: bool = False,
    ) -> Proposal:
        """Drafts and refines R blocks per request.

        Args:
            anchors: the token each block continues.
            start: its position; the block sees the context below it.
            noise: tokens for rows that nothing is known about, one per row of the block.
            config: refinement.
            with_logprobs: keep the authors' log-probabilities.
        """
        positions = start[:, :, None] + jnp.arange(1, self.num_drafts + 1, dtype=jnp.int32)[None, None, :]

        def guess(logits: Float[Array, "B R G V"], states: Any = None) -> Guess:
            scores = self.evidence(logits, positions)

            def logprob_of(tokens):
                chosen = jnp.take_along_axis(scores, tokens[..., None], axis=-1, mode="clip")[..., 0]
                return chosen - jax.nn.logsumexp(scores, axis=-1)

            return Guess(first_argmax(scores)[0], logprob_of, states)

        def draft_pass(drafts, num_fixed, states) -> Guess:
            return guess(self.draft_logits(self._rows(anchors, drafts, noise), start, num_fixed, states, config))

        def refresh(drafts) -> Guess:
            rows = jnp.concatenate([anchors[..., None], drafts[..., :-1]], axis=-1)  # row o predicts draft o
            taps, logits = self.predict(rows, start)
            return guess(logits, self.draft.inject(taps, start))

        return refine(draft_pass, None if self.predict is None else refresh, config, with_logprobs=with_logprobs)

    def draft_logits(
        self,
        rows: Int[Array, "B R T"],
        start: Int[Array, "B R"],
        num_fixed: Int[Array, "B R"] | None,
        states: InjectedRows | None,
        config: RefineConfig,
    ) -> Float[Array, "B R G V"]:
        """One pass of the draft: logits of the γ drafted positions."""
        hidden = self.draft(
            self.decoder.embed(rows),
            self.context,
            start,
            num_fixed=num_fixed,
            refreshed=states,
            sees_fixed_rows=config.conditioning == "double",
        )
        first = 0 if self.draft.config.shift else 1
        return self.decoder.head(hidden[:, :, first : first + self.num_drafts])

    def _rows(
        self, anchors: Int[Array, "B R"], drafts: Int[Array, "B R G"] | None, noise: Int[Array, "B R W"]
    ) -> Int[Array, "B R T"]:
        """Input rows of a pass: the anchor, then drafts, noise or the mask token."""
        config = self.draft.config
        width = noise.shape[-1]
        unknown = noise if config.inputs == "noise" else jnp.full_like(noise, config.mask_token_id)
        later = unknown[..., 1:]
        if drafts is not None:
            known = drafts[..., : width - 1]
            known = jnp.where(known == RENOISE, later[..., : known.shape[-1]], known)
            later = jnp.concatenate([known, later[..., known.shape[-1] :]], axis=-1)
        return jnp.concatenate([anchors[..., None], later], axis=-1)


def num_block_rows(draft: Draft, num_drafts: int) -> int:
    """Rows of one pass. A causal draft needs no more than it predicts from; a bidirectional one is run as trained."""
    needed = num_drafts if draft.config.shift else num_drafts + 1
    return needed if draft.config.causal else max(needed, draft.config.block_rows)


def noise_tokens(
    key: Key[Array, "B"],
    tokens: Int[Array, "B S"],
    anchors: Int[Array, "B R"],
    start: Int[Array, "B R"],
    num_rows: int,
) -> Int[Array, "B R T"]:
    """Tokens at uniformly random positions of each block's prefix, its anchor included (handbook 7.2).

    Keyed by the anchor's position, so that a block is drafted from the same noise whether in advance or after.

    Args:
        key: one per request.
        tokens: the text, foreseen tokens included; block r may read positions below `start[r]`.
        anchors: the token at `start`.
        start: position of the anchor.
        num_rows: noise tokens per block.
    """

    def one(key, tokens, anchor, start):
        key = jax.random.fold_in(jax.random.fold_in(key, jnp.uint32(INPUT_NOISE_STREAM)), start + 1)
        # A remainder of 32 random bits is uniform to one part in 2^32 / length; `randint` compiles twice as long.
        index = (jax.random.bits(key, (num_rows,)) % (start + 1).astype(jnp.uint32)).astype(jnp.int32)
        return jnp.where(index == start, anchor, tokens[index])

    return jax.vmap(jax.vmap(one, in_axes=(None, None, 0, 0)))(key, tokens, anchors, start)
