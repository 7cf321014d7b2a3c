"""Programs that draft ahead: block t + 1 is drafted while block t is verified, on the same device or on a second one.

Both drivers compose the same three pure functions: *verify* block t, *foresee* blocks for its outcomes, *select* the
one for the outcome that came. Fused, they are one program; pipelined, verify runs on the target's device and the other
two on the draft's, queued by asynchronous dispatch, with nothing but device arrays passed between them:

    target device   | verify 0        | verify 1        | verify 2
    draft device    | foresee 0 | sel | foresee 1 | sel | foresee 2
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.executables import Over, shapes
from jetspec_jax.decoding.foresight import ForesightState
from jetspec_jax.decoding.outcome_cache import OutcomeCache
from jetspec_jax.decoding.programs import DecodeState, Programs
from jetspec_jax.decoding.proposal import Proposal
from jetspec_jax.decoding.round import prefill_chunk
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
        # Two sides, two sets of buffers: each is donated on its own.
        target = self._init_target(tokens, prompt_len)
        side = ForesightState(
            tokens=target.tokens + 0,
            length=target.length + 0,
            request=target.request + 0,
            round=target.round + 0,
            caches=self._init_caches(*tokens.shape),
        )
        return DecodeState(target, Ahead(jax.device_put(side, self.draft_device), None, None))


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

        key = (state.target.tokens.shape, spec, shapes(params))
        args = (*self._leaves, state, active, params)
        return self.executables.run("round", key, program, args, donated=(3,), device=self.device, is_recycled=True)


@dataclass(frozen=True)
class Spare:
    """What the programs of the last round returned beside their states, if there was one; the next one's write over it.

    Attributes:
        told: by `verify`, to the host and to the draft's device.
        cache: blocks that `foresee` has prepared.
        fared: report of `select`.
    """

    told: tuple[RoundOutput, Verdict] | None = None
    cache: OutcomeCache | None = None
    fared: DraftReport | None = None


@dataclass(frozen=True)
class PipelineState:
    """Handles of a batch on two devices; a host object, its parts are donated separately.

    Attributes:
        target: on the target's device.
        drafts: the next block's tokens, on the target's device; None before the first.
        draft: on the draft's device.
        params: sampling options on the draft's device; None before `start`.
        spare: buffers to be written over.
    """

    target: RoundState
    drafts: Int[Array, "B G"] | None
    draft: Ahead
    params: RowParams | None
    spare: Spare = Spare()


class PipelinedPrograms(ForesightPrograms):
    """Verification on one device, foresight and selection on another, overlapping.

    The two devices may be one: the programs are then queued behind each other, with the same text.

    Attributes:
        draft_device: where draft, adapter and a copy of the target's top live.
    """

    copies_decoder = True

    def init_state(self, tokens: Int[Array, "B S"], prompt_len: Int[Array, "B"]) -> PipelineState:
        """Empty caches on both devices."""
        state = super().init_state(tokens, prompt_len)
        return PipelineState(state.target, None, state.draft, None)

    def prefill(
        self, state: PipelineState, last_x: Float[Array, "B D"], chunk_len: int, start, params, spec
    ) -> tuple[PipelineState, Float[Array, "B D"], RoundOutput]:
        """Runs one prompt chunk through the target; its tapped states follow to the draft's device."""

        def on_target(target_leaves, state, last_x, start, params):
            target = self.definition.merge(target_leaves)
            return prefill_chunk(target, state, last_x, chunk_len, start, params, spec)

        def on_draft(draft_leaves, decoder_leaves, caches, rows):
            return self.drafter.observe(draft_leaves, self.decoder(decoder_leaves), caches, rows)

        key = (state.target.tokens.shape, chunk_len, spec, shapes(params))
        target, last_x, out, rows = self._on_target(
            "prefill", key, on_target, (self.target_leaves, state.target, last_x, start, params), (1, 2)
        )
        rows = jax.device_put(rows, self.draft_device)
        side = state.draft.side
        caches = self._on_draft("observe", key, on_draft, (side.caches, rows), (2,))
        return replace(state, target=target, draft=replace(state.draft, side=replace(side, caches=caches))), last_x, out

    def start(self, state: PipelineState, params: RowParams, spec: SamplingSpec) -> PipelineState:
        """Drafts the first block."""

        def anchor_of(target):
            return target.anchor

        def program(draft_leaves, decoder_leaves, side, anchor, params):
            ahead = self.begin(draft_leaves, self.decoder(decoder_leaves), side, anchor, params, spec)
            # A timeline waits for what nobody is given to overwrite, and the two devices' tokens are given away apart.
            return ahead, ahead.block.mass + 0, ahead.block.tokens + 0

        key = (state.target.tokens.shape, spec, shapes(params))
        anchor = self._on_target("anchor", key, anchor_of, (state.target,), ())
        params = jax.device_put(params, self.draft_device)
        anchor = jax.device_put(anchor, self.draft_device)
        ahead, _, drafts = self._on_draft("first block", key, program, (state.draft.side, anchor, params), (2,))
        return PipelineState(state.target, jax.device_put(drafts, self.device), ahead, params)

    def round(
        self,
        state: PipelineState,
        active: Bool[Array, "B"],
        params: RowParams,
        spec: SamplingSpec,
        *,
        is_drafting: bool,
    ) -> tuple[PipelineState, RoundOutput]:
        """Queues one round on both devices; this host code waits for neither.

        On GPU the runtime itself reads the predicate of the fallback's branch before it queues what follows `select`
        (measured in `docs/lab-notes.md`); the miss policy `soft_miss` has no branch.
        """
        if not is_drafting:
            return self._plain_round(state, active, params, spec)

        def on_target(target_leaves, target_state, drafts, active, params):
            target = self.definition.merge(target_leaves)
            after, out, verdict = self.verify(target, target_state, drafts, active, params, spec)
            return after, (out, verdict)

        def ahead_of(draft_leaves, decoder_leaves, side, block, pending, params):
            decoder = self.decoder(decoder_leaves)
            return self.foresee(draft_leaves, decoder, Ahead(side, block, pending), params, spec)

        def select(draft_leaves, decoder_leaves, side, cache, block, verdict, params):
            decoder = self.decoder(decoder_leaves)
            chosen, side, fared = self.select(draft_leaves, decoder, side, cache, block, verdict, params, spec)
            return (side, chosen), fared

        key = (state.target.tokens.shape, spec, shapes(params))
        ahead, spare, executables = state.draft, state.spare, self.executables
        given = (self.target_leaves, state.target, state.drafts, active, params)
        target, told = self._on_target("verify", key, on_target, given, (1,), Over(spare.told))
        given = (ahead.side, ahead.block, ahead.pending, state.params)
        side, cache = self._on_draft("foresee", key, ahead_of, given, (2,), Over(spare.cache))
        # What was pending has been taken in, what was drafted is being verified: their places are free.
        verdict = executables.settled(ahead.pending, jax.device_put(told[1], self.draft_device), self.draft_device)
        given = (side, cache, ahead.block, verdict, state.params)
        (side, block), fared = self._on_draft("select", key, select, given, (2, 4), Over(spare.fared))
        drafts = executables.settled(state.drafts, jax.device_put(block.tokens, self.device), self.device)
        out = replace(executables.copied(told[0], self.device), draft=executables.copied(fared, self.draft_device))
        ahead, spare = Ahead(side, block, verdict), Spare(told, cache, fared)
        return PipelineState(target, drafts, ahead, state.params, spare), out

    def _on_target(self, name: str, key: tuple, program, args: tuple, donated: tuple[int, ...], over=None):
        how = {"donated": donated, "device": self.device, "is_recycled": over is not None, "over": over}
        return self.executables.run(name, key, program, args, **how)

    def _on_draft(self, name: str, key: tuple, program, args: tuple, donated: tuple[int, ...], over=None):
        how = {"donated": donated, "device": self.draft_device, "is_recycled": over is not None, "over": over}
        args = (self.draft_leaves, self.decoder_leaves, *args)
        return self.executables.run(name, key, program, args, **how)
