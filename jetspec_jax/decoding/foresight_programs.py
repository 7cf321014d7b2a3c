"""Programs that draft ahead: block t + 1 is drafted while block t is verified, on the same device or on a second one.

Both drivers compose the same three pure functions: *verify* block t, *foresee* blocks for its outcomes, *select* the
one for the outcome that came. Fused, they are one program; pipelined (`pipelined_programs.py`), each is its own.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jetspec_jax.decoding.executables import shapes
from jetspec_jax.decoding.foresight import ForesightState
from jetspec_jax.decoding.outcome_cache import OutcomeCache
from jetspec_jax.decoding.programs import DecodeState, Programs
from jetspec_jax.decoding.proposal import Proposal
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec
from jetspec_jax.decoding.state import ContextRows, DraftReport, RoundOutput, RoundState, Verdict
from jetspec_jax.drafters.jetspecpp import JetSpecPP
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.functional import Leaves


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ahead:
    """The draft side of a batch whose next block is drafted already.

    Attributes:
        side: text and caches; they lack what `pending` holds.
        block: the block to verify next; None before the first one is drafted.
        pending: the last verdict, not yet taken in; None likewise.
    """

    side: ForesightState
    block: Proposal | None
    pending: Verdict | None


class ForesightPrograms(Programs):
    """The pure functions that both compositions share."""

    drafter: JetSpecPP

    def foresee(
        self, leaves: Leaves, decoder: Decoder, ahead: Ahead, params: RowParams, spec: SamplingSpec
    ) -> tuple[ForesightState, OutcomeCache]:
        """Takes in the last verdict and prepares blocks for the outcomes of the verification of `ahead.block`."""
        state = ahead.side.absorb(ahead.pending)
        cache, caches = self.drafter.foresee(leaves, decoder, state, ahead.pending.rows, ahead.block, params, spec)
        return replace(state, caches=caches), cache

    def select(
        self,
        leaves,
        decoder: Decoder,
        side: ForesightState,
        cache: OutcomeCache,
        block: Proposal,
        verdict: Verdict,
        params: RowParams,
        spec: SamplingSpec,
    ) -> tuple[Proposal, ForesightState, DraftReport | None]:
        """The block for the outcome that came, the draft side handed through, and how the verified block fared."""
        chosen, caches = self.drafter.next_block(leaves, decoder, side, cache, verdict, params, spec)
        return chosen, replace(side, caches=caches), self.report(block, verdict)

    def begin(
        self, leaves: Leaves, decoder: Decoder, side: ForesightState, anchor: Int[Array, "B"], params, spec
    ) -> Ahead:
        """Drafts the first block after a prompt; no cache can hold it, so it never counts as hit or miss."""
        batch, rows = anchor.shape[0], self.drafter.num_drafts + 1
        config = self.drafter.config
        tokens = jnp.zeros((batch, rows), jnp.int32)
        # A verdict about nothing: no row of it is kept, and taking it in changes nothing but the anchor's slot.
        pending = Verdict(
            request=side.request,
            round=side.round - 1,
            num_accepted=jnp.full((batch,), -1, jnp.int32),
            anchor=anchor,
            rows=ContextRows(
                tokens=tokens,
                taps=jnp.zeros((batch, rows, config.num_taps, config.shape.hidden_size), decoder.dtype),
                start=side.length,
                num_kept=jnp.zeros((batch,), jnp.int32),
            ),
        )
        side = side.absorb(pending)
        return Ahead(side, self.drafter.first_block(leaves, decoder, side, params, spec), pending)

    def init_state(self, tokens: Int[Array, "B S"], prompt_len: Int[Array, "B"]) -> Any:
        """Empty caches around the prompts, on both sides."""

        def program(target_leaves, draft_leaves, decoder_leaves, tokens, prompt_len, request):
            target = self.definition.merge(target_leaves)
            state = RoundState.empty(target, tokens, prompt_len, request)
            decoder = self.decoder(decoder_leaves, target)
            return DecodeState(state, Ahead(self._empty_side(decoder, tokens, prompt_len, request), None, None))

        args = (*self._leaves, tokens, prompt_len, self._request_numbers(len(tokens)))
        return self.executables.run("empty state", (tokens.shape,), program, args, donated=(), device=self.device)

    def _empty_side(self, decoder: Decoder, tokens, prompt_len, request) -> ForesightState:
        """The draft side of a batch whose prompts have not been processed; for use inside programs."""
        return ForesightState(
            tokens=tokens + 0,
            length=prompt_len + 0,
            request=request + 0,
            round=jnp.zeros((len(tokens),), jnp.int32),
            caches=self.drafter.init_state(decoder, *tokens.shape),
        )


class FusedPrograms(ForesightPrograms):
    """Verification and foresight in one program on one device: the same text and blocks, nothing hidden."""

    def observe(self, leaves: Leaves, decoder: Decoder, draft: Ahead, rows: ContextRows) -> Ahead:
        """Takes in rows of the prompt; for use inside programs."""
        caches = self.drafter.observe(leaves, decoder, draft.side.caches, rows)
        return replace(draft, side=replace(draft.side, caches=caches))

    def start(self, state: Any, params: RowParams, spec: SamplingSpec) -> Any:
        """Drafts the first block."""

        def program(target_leaves, draft_leaves, decoder_leaves, state, params):
            decoder = self.decoder(decoder_leaves, self.definition.merge(target_leaves))
            ahead = self.begin(draft_leaves, decoder, state.draft.side, state.target.anchor, params, spec)
            return DecodeState(state.target, ahead)

        key = (state.target.tokens.shape, spec, shapes(params))
        args = (*self._leaves, state, params)
        return self.executables.run("first block", key, program, args, donated=(3,), device=self.device)

    def round(
        self, state: Any, active: Bool[Array, "B"], params: RowParams, spec: SamplingSpec, *, is_drafting: bool
    ) -> tuple[Any, RoundOutput]:
        """One round: verify, foresee, select."""
        if not is_drafting:
            return self._plain_round(state, active, params, spec)

        def program(target_leaves, draft_leaves, decoder_leaves, state, active, params):
            target, ahead = self.definition.merge(target_leaves), state.draft
            decoder = self.decoder(decoder_leaves, target)
            after, out, verdict = self.verify(target, state.target, ahead.block.tokens, active, params, spec)
            side, cache = self.foresee(draft_leaves, decoder, ahead, params, spec)
            block, side, fared = self.select(draft_leaves, decoder, side, cache, ahead.block, verdict, params, spec)
            return DecodeState(after, Ahead(side, block, verdict)), replace(out, draft=fared)

        return self._round("round", program, state, active, params, spec)
