"""The draft side inside a trace: draft, predictor and decoder over their caches, for one or many blocks per request."""

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from jetspec_jax.ops.head_draw import head_draw
from jetspec_jax.ops.kernels import choose

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
        predict_hidden: as `predict`, with what the head reads instead of logits; None if the logits are not the head's.
    """

    draft: Draft
    context: KVCache
    predict: Callable | None
    decoder: Decoder
    evidence: Evidence
    num_drafts: int
    predict_hidden: Callable | None = None

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

        def draft_pass(drafts, num_fixed, states) -> Guess:
            arguments = (self._rows(anchors, drafts, noise), start, num_fixed, states, config)
            return self.guess_of_draft(arguments, positions, with_logprobs)

        def refresh(drafts) -> Guess:
            rows = jnp.concatenate([anchors[..., None], drafts[..., :-1]], axis=-1)  # row o predicts draft o
            taps, guess = self.guess_of_predictor(rows, start, positions, with_logprobs)
            return replace(guess, states=self.draft.inject(taps, start))

        return refine(draft_pass, None if self.predict is None else refresh, config)

    def guess_of_draft(self, arguments: tuple, positions: Int[Array, "B R G"], with_logprobs: bool) -> Guess:
        """Tokens of one pass of the draft.

        Args:
            arguments: of `draft_logits`.
            positions: of the drafts.
            with_logprobs: keep the draft's log-probabilities.
        """

        def kernel():
            if type(self).draft_logits is not DraftSide.draft_logits:
                raise NotImplementedError("the draft's logits are replaced")
            self._check_plain()
            return self._drawn(self.draft_hidden(*arguments), positions, with_logprobs)

        def otherwise():
            return self._guessed(self.draft_logits(*arguments), positions, with_logprobs)

        return choose("head_draw", kernel, otherwise)

    def guess_of_predictor(
        self, rows: Int[Array, "B R G"], start: Int[Array, "B R"], positions: Int[Array, "B R G"], with_logprobs: bool
    ) -> tuple[Float[Array, "B R G M D"], Guess]:
        """Predicted states of the rows of a refresh, and the tokens that follow from them."""

        def kernel():
            if self.predict_hidden is None:
                raise NotImplementedError("the predictor's logits are replaced")
            self._check_plain()
            taps, hidden = self.predict_hidden(rows, start)
            return taps, self._drawn(hidden, positions, with_logprobs)

        def otherwise():
            taps, logits = self.predict(rows, start)
            return taps, self._guessed(logits, positions, with_logprobs)

        return choose("head_draw", kernel, otherwise)

    def draft_logits(
        self,
        rows: Int[Array, "B R T"],
        start: Int[Array, "B R"],
        num_fixed: Int[Array, "B R"] | None,
        states: InjectedRows | None,
        config: RefineConfig,
    ) -> Float[Array, "B R G V"]:
        """One pass of the draft: logits of the γ drafted positions."""
        return self.decoder.head(self.draft_hidden(rows, start, num_fixed, states, config))

    def draft_hidden(
        self,
        rows: Int[Array, "B R T"],
        start: Int[Array, "B R"],
        num_fixed: Int[Array, "B R"] | None,
        states: InjectedRows | None,
        config: RefineConfig,
    ) -> Float[Array, "B R G D"]:
        """One pass of the draft: what the head reads of the γ drafted positions."""
        hidden = self.draft(
            self.decoder.embed(rows),
            self.context,
            start,
            num_fixed=num_fixed,
            refreshed=states,
            sees_fixed_rows=config.conditioning == "double",
        )
        first = 0 if self.draft.config.shift else 1
        return hidden[:, :, first : first + self.num_drafts]

    def _guessed(self, logits: Float[Array, "B R G V"], positions: Int[Array, "B R G"], with_logprobs: bool) -> Guess:
        scores = self.evidence(logits, positions)
        tokens, top = first_argmax(scores)
        return Guess(tokens, top - jax.nn.logsumexp(scores, axis=-1) if with_logprobs else None)

    def _check_plain(self) -> None:
        if not self.evidence.is_plain:
            raise NotImplementedError(f"bias and truncation need logits: {self.evidence.spec}")

    def _drawn(self, hidden: Float[Array, "B R G D"], positions: Int[Array, "B R G"], with_logprobs: bool) -> Guess:
        """The same without logits."""
        evidence = self.evidence
        tokens, top, total = head_draw(
            hidden.astype(self.decoder.dtype),
            self.decoder.head_weight,
            temperature=evidence.params.temperature if evidence.spec.samples else None,
            key=None if evidence.noise is None else evidence.params.key,
            positions=positions,
        )
        return Guess(tokens, top - total if with_logprobs else None)

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
