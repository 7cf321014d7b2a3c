"""Verification on one device, drafting on another, queued by asynchronous dispatch: nothing but device arrays passes.

target device   | verify 0        | verify 1        | verify 2
draft device    | foresee 0 | sel | foresee 1 | sel | foresee 2
"""

from dataclasses import dataclass, replace

import jax
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.executables import Over, shapes
from jetspec_jax.decoding.foresight_programs import Ahead, ForesightPrograms
from jetspec_jax.decoding.outcome_cache import OutcomeCache
from jetspec_jax.decoding.round import prefill_chunk
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec
from jetspec_jax.decoding.state import DraftReport, RoundOutput, RoundState, Verdict


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
        spare: buffers to be written over; the output alone after a round without drafts.
    """

    target: RoundState
    drafts: Int[Array, "B G"] | None
    draft: Ahead
    params: RowParams | None
    spare: Spare | RoundOutput = Spare()


class PipelinedPrograms(ForesightPrograms):
    """Verification on one device, foresight and selection on another, overlapping.

    The two devices may be one: the programs are then queued behind each other, with the same text.

    Attributes:
        draft_device: where draft, adapter and a copy of the target's top live.
    """

    copies_decoder = True

    def init_state(self, tokens: Int[Array, "B S"], prompt_len: Int[Array, "B"]) -> PipelineState:
        """Empty caches on both devices."""

        def on_target(target_leaves, tokens, prompt_len, request):
            return RoundState.empty(self.definition.merge(target_leaves), tokens, prompt_len, request)

        def on_draft(draft_leaves, decoder_leaves, tokens, prompt_len, request):
            return self._empty_side(self.decoder(decoder_leaves), tokens, prompt_len, request)

        key, batch = (tokens.shape,), (tokens, prompt_len, self._request_numbers(len(tokens)))
        target = self._on_target("empty state", key, on_target, (self.target_leaves, *batch), ())
        batch = jax.device_put(batch, self.draft_device)
        side = self._on_draft("empty side", key, on_draft, batch, ())
        return PipelineState(target, None, Ahead(side, None, None), None)

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
        ahead, spare = Ahead(side, block, verdict), Spare(told, cache, fared)
        return PipelineState(target, drafts, ahead, state.params, spare), replace(told[0], draft=fared)

    def _on_target(self, name: str, key: tuple, program, args: tuple, donated: tuple[int, ...], over=None):
        return self.executables.run(name, key, program, args, donated=donated, device=self.device, over=over)

    def _on_draft(self, name: str, key: tuple, program, args: tuple, donated: tuple[int, ...], over=None):
        args = (self.draft_leaves, self.decoder_leaves, *args)
        return self.executables.run(name, key, program, args, donated=donated, device=self.draft_device, over=over)
