"""Compiled programs of one target and drafter that draft on the critical path: propose, verify, observe in one program.

Shapes are bucketed (capacity, prompt chunk) so that requests share executables. `foresight_programs.py` has the ones
that draft ahead of the verification; the driver does not see the difference.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.executables import Executables, Over, shapes, types
from jetspec_jax.decoding.proposal import Proposal, report
from jetspec_jax.decoding.round import prefill_chunk, verify_round
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec
from jetspec_jax.decoding.state import ContextRows, RoundOutput, RoundState, Verdict
from jetspec_jax.decoding.verify import NO_TOKEN
from jetspec_jax.drafters.protocol import Drafter, DraftView
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.functional import Leaves, ModuleDef, place, split
from jetspec_jax.models.target import Target
from jetspec_jax.ops.kernels import ROW_MULTIPLE, Kernels, pads_rows

# Longest piece of a prompt that one call processes; longer prompts take several calls of one executable.
PREFILL_CHUNK = 512
_BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def bucket(size: int) -> int:
    """The smallest bucket that holds `size`; above the table, multiples of 1024."""
    for candidate in _BUCKETS:
        if size <= candidate:
            return candidate
    return -(-size // 1024) * 1024


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """A batch between rounds, donated each call.

    Attributes:
        target: the target's side.
        draft: the draft side, any pytree.
        spare: the output of the round before, which the next one writes over; None: there is none.
    """

    target: RoundState
    draft: Any
    spare: RoundOutput | None = None


class Programs:
    """What the driver calls, for drafters without foresight.

    Attributes:
        executables: the compiled programs.
        target_leaves, draft_leaves: arrays passed to them.
        decoder_leaves: the draft side's own copy of the target's top; empty where it reads the target's arrays.
        device: where the target lives.
        draft_device: where the draft side lives, the same for these programs.
    """

    copies_decoder = False  # whether the draft side's programs have no target to read from

    def __init__(
        self,
        definition: ModuleDef,
        leaves: Leaves,
        drafter: Drafter,
        device: jax.Device,
        draft_device: jax.Device | None = None,
        kernels: str | Sequence[str] = "auto",
    ):
        self.definition = definition
        self.target_leaves = leaves
        self.drafter = drafter
        self.device = device
        self.draft_device = device if draft_device is None else draft_device
        self.draft_leaves = drafter.place(self.draft_device)
        self._decoder_definition, self.decoder_leaves = self._own_decoder()
        target_bytes = sum(leaf.nbytes for leaf in leaves)
        self.executables = Executables(
            {
                each: Kernels.for_device(each.device_kind, kernels, target_bytes=target_bytes)
                for each in (self.device, self.draft_device)
            }
        )
        self._requests = itertools.count()

    @property
    def num_compiled(self) -> int:
        """Executables built so far."""
        return self.executables.num_compiled

    @property
    def compile_ms(self) -> float:
        """Time spent building them."""
        return self.executables.compile_ms

    @cached_property
    def target(self) -> Target:
        """The merged target; for shapes and configuration, not for computing."""
        return self.definition.merge(self.target_leaves)

    @property
    def padding_rows(self) -> int:
        """Slots that a block may reach beyond its own rows, because kernels take rows in multiples."""
        return ROW_MULTIPLE - 1 if any(map(pads_rows, self.executables.kernels.values())) else 0

    def set_draft_leaves(self, leaves: Leaves) -> None:
        """Gives the drafter other arrays of the same shapes, say newly trained weights; nothing is recompiled.

        Args:
            leaves: as the drafter's `place` gives them.

        Raises:
            ValueError: shapes or dtypes differ from the old ones.
        """
        if (new := types(leaves)) != (old := types(self.draft_leaves)):
            raise ValueError(f"the drafter's leaves are {old}, got {new}")
        self.draft_leaves = jax.device_put(leaves, self.draft_device)

    def init_state(self, tokens: Int[Array, "B S"], prompt_len: Int[Array, "B"]) -> Any:
        """Empty caches around the prompts."""

        def program(target_leaves, draft_leaves, decoder_leaves, tokens, prompt_len, request):
            target = self.definition.merge(target_leaves)
            decoder = self.decoder(decoder_leaves, target)
            draft = self.drafter.init_state(decoder, *tokens.shape)
            return DecodeState(RoundState.empty(target, tokens, prompt_len, request), draft)

        args = (*self._leaves, tokens, prompt_len, self._request_numbers(len(tokens)))
        return self.executables.run("empty state", (tokens.shape,), program, args, donated=(), device=self.device)

    def prefill(
        self,
        state: Any,
        last_x: Float[Array, "B D"],
        chunk_len: int,
        start: Int[Array, ""],
        params: RowParams,
        spec: SamplingSpec,
    ) -> tuple[Any, Float[Array, "B D"], RoundOutput]:
        """Runs one prompt chunk through target and drafter."""

        def program(target_leaves, draft_leaves, decoder_leaves, state, last_x, start, params):
            target = self.definition.merge(target_leaves)
            kept, last_x, out, rows = prefill_chunk(target, state.target, last_x, chunk_len, start, params, spec)
            draft = self.observe(draft_leaves, self.decoder(decoder_leaves, target), state.draft, rows)
            return DecodeState(kept, draft), last_x, out

        key = (state.target.tokens.shape, chunk_len, spec, shapes(params))
        args = (*self._leaves, state, last_x, start, params)
        return self.executables.run("prefill", key, program, args, donated=(3, 4), device=self.device)

    def start(self, state: Any, params: RowParams, spec: SamplingSpec) -> Any:
        """Called once between prefill and the first round; nothing to do here."""
        return state

    def round(
        self, state: Any, active: Bool[Array, "B"], params: RowParams, spec: SamplingSpec, *, is_drafting: bool
    ) -> tuple[Any, RoundOutput]:
        """One round. Without drafting, one row is verified and the draft side rests for good."""
        if not is_drafting:
            return self._plain_round(state, active, params, spec)

        def program(target_leaves, draft_leaves, decoder_leaves, state, active, params):
            target = self.definition.merge(target_leaves)
            decoder = self.decoder(decoder_leaves, target)
            view = DraftView(state.target.tokens, state.target.length, params, spec)
            proposal, draft = self.drafter.propose(draft_leaves, decoder, state.draft, view)
            proposal = self._checked(proposal, view.tokens.shape[0])
            after, out, verdict = self.verify(target, state.target, proposal.tokens, active, params, spec)
            draft = self.drafter.observe(draft_leaves, decoder, draft, verdict.rows)
            return DecodeState(after, draft), replace(out, draft=self.report(proposal, verdict))

        return self._round("round", program, state, active, params, spec)

    def _round(self, name: str, program, state: DecodeState, active, params, spec) -> tuple[DecodeState, RoundOutput]:
        """A round that is one program of all leaves, the state, active rows and options."""
        key = (state.target.tokens.shape, spec, shapes(params))
        args = (*self._leaves, replace(state, spare=None), active, params)
        over = Over(state.spare)
        state, out = self.executables.run(name, key, program, args, donated=(3,), device=self.device, over=over)
        return replace(state, spare=out), out

    def decoder(self, decoder_leaves: Leaves, target: Target | None = None) -> Decoder:
        """The top of the target as the draft side reads it; for use inside programs.

        Args:
            decoder_leaves: as `self.decoder_leaves`.
            target: the merged target, needed where the draft side has no copy of its own.
        """
        return target.decoder() if self._decoder_definition is None else self._decoder_definition.merge(decoder_leaves)

    def observe(self, leaves: Leaves, decoder: Decoder, draft: Any, rows: ContextRows) -> Any:
        """Lets the draft side take in rows of the prompt; for use inside programs."""
        return self.drafter.observe(leaves, decoder, draft, rows)

    def verify(
        self, target: Target, state: RoundState, drafts: Int[Array, "B G"], active, params, spec
    ) -> tuple[RoundState, RoundOutput, Verdict]:
        """`verify_round` with nothing proposed beyond the drafter's own limit; for use inside programs."""
        if self.drafter.max_len is not None:
            fits = state.length + drafts.shape[1] <= self.drafter.max_len
            drafts = jnp.where(fits[:, None], drafts, NO_TOKEN)
        after, out, rows = verify_round(target, state, drafts, active, params, spec)
        return after, out, Verdict.of_round(state, after, rows)

    def report(self, proposal: Proposal, verdict: Verdict) -> Any:
        """How a proposal fared; None for drafters that have nothing to tell."""
        if proposal.trace is None:
            return None
        drafting = self.drafter.drafting  # whoever traces refines
        refines_misses = drafting.num_outcomes == 0 or drafting.fallback == drafting.refine
        return report(proposal, verdict, refines_misses=refines_misses, keep_trace=drafting.keep_trace)

    @property
    def _leaves(self) -> tuple[Leaves, Leaves, Leaves]:
        return self.target_leaves, self.draft_leaves, self.decoder_leaves

    def _own_decoder(self) -> tuple[ModuleDef | None, Leaves]:
        """A copy of the target's top where the draft side lives elsewhere or reads it in another form."""
        decoder = self.target.decoder()
        changed = self.drafter.own_decoder(decoder) if hasattr(self.drafter, "own_decoder") else None
        if changed is None and not self.copies_decoder:
            return None, ()
        definition, leaves = split(decoder if changed is None else changed)
        return definition, place(leaves, self.draft_device)

    def _plain_round(self, state: Any, active, params, spec) -> tuple[Any, RoundOutput]:
        def program(target_leaves, state, active, params):
            nothing = jnp.zeros((state.tokens.shape[0], 0), jnp.int32)
            return verify_round(self.definition.merge(target_leaves), state, nothing, active, params, spec)[:2]

        key = (state.target.tokens.shape, spec, shapes(params))
        args = (self.target_leaves, state.target, active, params)
        # What a round with drafts has left is larger.
        is_plain = isinstance(state.spare, RoundOutput) and state.spare.tokens.shape[1] == 1
        over = Over(state.spare if is_plain else None)
        after, out = self.executables.run(
            "plain round", key, program, args, donated=(1,), device=self.device, over=over
        )
        return replace(state, target=after, spare=out), out

    def _request_numbers(self, batch: int) -> Int[Array, "B"]:
        numbers = np.array([next(self._requests) for _ in range(batch)], np.int32)
        return jax.device_put(numbers, self.device)

    def _checked(self, proposed: Any, batch: int) -> Proposal:
        """What the drafter proposed, as a `Proposal` of the promised shape."""
        drafts = proposed.tokens if isinstance(proposed, Proposal) else proposed
        expected = (batch, self.drafter.num_drafts)
        if drafts.shape != expected or not jnp.issubdtype(drafts.dtype, jnp.integer):
            raise ValueError(
                f"drafter {self.drafter.name!r} must propose integers of shape {list(expected)}, "
                f"got {drafts.dtype}{list(drafts.shape)}"
            )
        drafts = drafts.astype(jnp.int32)
        return replace(proposed, tokens=drafts) if isinstance(proposed, Proposal) else Proposal.of_tokens(drafts)
