"""JetSpec++: a parallel block draft that refines its proposals and drafts ahead of the verification.

One class serves every parallel draft: JetSpec++ (causal, token inputs), JetSpec (causal, mask inputs) and DFlash
(bidirectional, mask inputs) differ by the `DraftConfig`; refinement, foresight and what happens on a miss by the
`DraftingConfig`.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from jetspec_jax.config import TargetConfig, adapter_config_for, draft_config_for
from jetspec_jax.decoding.draft_side import DraftSide, noise_tokens, num_block_rows
from jetspec_jax.decoding.evidence import Evidence
from jetspec_jax.decoding.foresight import ForesightState, foresee
from jetspec_jax.decoding.outcome_cache import OutcomeCache, select_block
from jetspec_jax.decoding.outcomes import Calibration
from jetspec_jax.decoding.proposal import Proposal, choose
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec
from jetspec_jax.decoding.state import ContextRows, Verdict
from jetspec_jax.drafters.predictor import AdapterPredictor, as_predictor
from jetspec_jax.drafters.protocol import DraftView
from jetspec_jax.drafting_config import PLAIN_PASS, DraftingConfig, RefineConfig
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import Leaves, place, split
from jetspec_jax.models.quantize import quantized
from jetspec_jax.models.stack import joined


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftCaches:
    """What the draft side remembers of the context.

    Attributes:
        context: keys injected into the draft.
        predictor: the predictor's own state; () without one.
    """

    context: KVCache
    predictor: Any


class JetSpecPP:
    """Drafter over a draft network and, for refreshes and foresight, a predictor of target states.

    Args:
        draft: the draft network.
        adapter: an `Adapter` or another `Predictor`; None if `drafting` needs none.
        drafting: refinement, foresight, miss policy; None is one pass on the critical path.
        calibration: for `outcome_rule="calibrated"`, which is then the default.
        max_len: longest context the draft was trained for, None for any.

    Attributes:
        draft: the draft network as given, whatever form its weights are read in.

    Raises:
        ValueError: parts that do not fit each other.
    """

    side_type = DraftSide  # runs the draft inside a trace; tests put a draft of known quality in its place
    keeps_evidence = False  # outcome caches carry what they were chosen by; only calibration wants it
    is_random = False  # untrained weights: true of what `random` makes

    def __init__(
        self,
        draft: Draft,
        adapter: Any = None,
        *,
        drafting: DraftingConfig | None = None,
        calibration: Calibration | None = None,
        max_len: int | None = None,
    ):
        self.config = draft.config
        self.drafting = (drafting or PLAIN_PASS).resolved(is_calibrated=calibration is not None)
        self.num_drafts = self.drafting.num_drafts or self.config.max_draft_len
        if not self.config.causal and self.num_drafts > self.config.max_draft_len:
            raise ValueError(f"num_drafts={self.num_drafts}, bidirectional draft of {self.config.block_rows} rows")
        self.predictor = as_predictor(adapter, self.config, self.drafting.draft_weights)
        if self.drafting.needs_predictor and self.predictor is None:
            name, num_outcomes = self.drafting.refine.name, self.drafting.num_outcomes
            raise ValueError(f"{name} with num_outcomes={num_outcomes} needs an adapter")
        # What nobody reads need not catch up, which would cost another draft.
        self._predictor = self.predictor if self.drafting.needs_predictor else None
        if self.drafting.outcome_rule == "calibrated" and calibration is None:
            raise ValueError("outcome_rule='calibrated' needs a calibration")
        self.name = "jetspec++" if self.drafting.needs_predictor else "parallel"
        self.calibration = calibration
        self.max_len = max_len
        self.draft = draft
        self._definition, self._leaves = split(self._as_read(draft))
        self._num_calibrated = len(jax.tree.leaves(calibration))
        self._num_rows = num_block_rows(draft, self.num_drafts)

    @classmethod
    def random(
        cls, target: TargetConfig, *, dtype: DTypeLike, drafting: DraftingConfig | None = None, seed: int = 0
    ) -> "JetSpecPP":
        """An untrained drafter for a target: right text, about one token a round."""
        draft = Draft(draft_config_for(target), dtype=dtype, rngs=nnx.Rngs(seed))
        adapter = None
        if (PLAIN_PASS if drafting is None else drafting).needs_predictor:
            adapter = Adapter.random(adapter_config_for(target), dtype=dtype, rngs=nnx.Rngs(seed + 1))
        drafter = cls(draft, adapter, drafting=drafting)
        drafter.is_random = True
        return drafter

    @property
    def adapter(self) -> Adapter | None:
        """The adapter; None without one, or if something else predicts states."""
        return self.predictor.adapter if isinstance(self.predictor, AdapterPredictor) else None

    @property
    def foresees(self) -> bool:
        """Whether blocks are drafted ahead of the verification."""
        return self.drafting.num_outcomes > 0

    def with_drafting(self, *, calibration: Calibration | None = None, **changes: Any) -> "JetSpecPP":
        """The same weights, drafted with otherwise; `calibration` None keeps the one there is."""
        drafter = type(self)(
            self.draft,
            self.predictor,
            drafting=replace(self.drafting, **changes),
            calibration=self.calibration if calibration is None else calibration,
            max_len=self.max_len,
        )
        drafter.is_random = self.is_random
        return drafter

    def place(self, device: jax.Device) -> Leaves:
        """Weights and calibration on a device: draft, predictor, calibration."""
        draft = place(self._leaves, device)
        predictor = () if self._predictor is None else self._predictor.place(device)
        calibration = jax.device_put(tuple(jax.tree.leaves(self.calibration)), device)
        return (*draft, *predictor, *calibration)

    def own_decoder(self, decoder: Decoder) -> Decoder | None:
        """The target's top in the form the drafter reads it; None for as it is."""
        return self._as_read(decoder) if self.drafting.draft_weights != "given" else None

    def init_state(self, decoder: Decoder, batch: int, capacity: int) -> DraftCaches:
        """Empty caches."""
        context = self._definition.merge(self._leaves).init_context(batch, capacity)
        predictor = () if self._predictor is None else self._predictor.init_state(decoder, batch, capacity)
        return DraftCaches(context, predictor)

    def propose(
        self, leaves: Leaves, decoder: Decoder, state: DraftCaches, view: DraftView
    ) -> tuple[Proposal, DraftCaches]:
        """Drafts and refines on the critical path, with true states only."""
        return self._propose(leaves, decoder, state, view, self.drafting.refine), state

    def observe(self, leaves: Leaves, decoder: Decoder, state: DraftCaches, rows: ContextRows) -> DraftCaches:
        """Takes in rows the target has processed."""
        rows.check_taps(self.config.num_taps, self.config.shape.hidden_size)
        context = self.draft_of(leaves).extend(state.context.with_length(rows.start), rows.taps)
        known = (self.predictor_leaves(leaves), decoder, state.predictor, rows)
        predictor = () if self._predictor is None else self._predictor.observe(*known)
        return DraftCaches(context.commit(rows.num_kept), predictor)

    def foresee(
        self,
        leaves: Leaves,
        decoder: Decoder,
        state: ForesightState,
        pending: ContextRows,
        block: Proposal,
        params: RowParams,
        spec: SamplingSpec,
    ) -> tuple[OutcomeCache, DraftCaches]:
        """Prepares blocks for the likeliest outcomes of the verification of `block`.

        Args:
            leaves, decoder: weights.
            state: the text up to the anchor of `block`; its caches still lack the rows of `pending`.
            pending: true states that arrived since; taken in by the same calls.
            block: what is being verified.
            params, spec: sampling options.

        Returns:
            The outcome cache, and caches that hold true rows below their length and predicted ones above it.
        """
        pending.check_taps(self.config.num_taps, self.config.shape.hidden_size)
        rows = jnp.concatenate([state.anchor[:, None], block.tokens], axis=1)
        taps, logits, predictor = self._predictor.foresee(
            self.predictor_leaves(leaves), decoder, state.caches.predictor, pending, rows
        )
        draft = self.draft_of(leaves)
        taps = joined(pending.taps.astype(draft.dtype), taps.astype(draft.dtype), pending.num_kept)
        context = draft.extend(state.caches.context.with_length(pending.start), taps)
        caches = DraftCaches(context.commit(pending.num_kept), predictor)
        # Positions from the verified block's first to the last that a block may draft: γ, an anchor, γ more.
        side = self._side(leaves, decoder, caches, state.length, 2 * self.num_drafts + 1, params, spec)
        options = (self.drafting, self._calibration(leaves), self._num_rows)
        return foresee(side, state, block, logits, params, *options, keep_evidence=self.keeps_evidence), caches

    def next_block(
        self,
        leaves: Leaves,
        decoder: Decoder,
        state: ForesightState,
        cache: OutcomeCache,
        verdict: Verdict,
        params: RowParams,
        spec: SamplingSpec,
    ) -> tuple[Proposal, DraftCaches]:
        """The prepared block of the outcome that came, or what the miss policy says.

        Args:
            leaves, decoder: weights.
            state: as it was when `cache` was made.
            cache, verdict: what was prepared, and what came.
            params, spec: sampling options.

        Returns:
            The block, and the caches of `state`. A miss has taken the verdict's rows into them, which does not change
            what the next `foresee` makes of the same rows; handing the buffers through saves a copy of all of them.
        """
        if self.drafting.miss_policy == "soft_miss":
            return select_block(cache, verdict, soft=True), state.caches
        cached = select_block(cache, verdict)

        def redraft(caches: DraftCaches) -> tuple[Proposal, DraftCaches]:
            caches = self.observe(leaves, decoder, caches, verdict.rows)
            proposal = self.first_block(leaves, decoder, replace(state.absorb(verdict), caches=caches), params, spec)
            return choose(cached.is_hit, cached, replace(proposal, mass=cached.mass)), caches

        is_needed = jnp.any(~cached.is_hit & verdict.is_active)
        return jax.lax.cond(is_needed, redraft, lambda caches: (cached, caches), state.caches)

    def first_block(
        self, leaves: Leaves, decoder: Decoder, state: ForesightState, params: RowParams, spec: SamplingSpec
    ) -> Proposal:
        """The block after a prompt or a miss, drafted with true states and refined as the miss policy says.

        Its trace and log-probabilities have the shapes of a prepared block's.
        """
        view = DraftView(state.tokens, state.length, params, spec)
        proposal = self._propose(leaves, decoder, state.caches, view, self.drafting.fallback)
        refine = self.drafting.refine
        return replace(proposal, trace=proposal.trace.stretched(refine.num_passes + 1, refine.num_refreshes))

    def _propose(
        self, leaves, decoder: Decoder, caches: DraftCaches, view: DraftView, refine: RefineConfig
    ) -> Proposal:
        mask_id, vocab_size = self.config.mask_token_id, decoder.config.vocab_size
        if (mask_id or 0) >= vocab_size:
            raise ValueError(f"mask_token_id={mask_id}, but the target has {vocab_size} ids")
        anchor = jnp.take_along_axis(view.tokens, view.length[:, None] - 1, axis=1)
        start = view.length[:, None] - 1
        noise = noise_tokens(view.params.key, view.tokens, anchor, start, self._num_rows)
        side = self._side(leaves, decoder, caches, view.length, self.num_drafts, view.params, view.spec)
        proposal = side.draft_blocks(anchor, start, noise, refine, with_logprobs=self._with_logprobs)
        return jax.tree.map(lambda rows: rows[:, 0], proposal)

    def _side(
        self, leaves, decoder: Decoder, caches: DraftCaches, base: Int[Array, "B"], window: int, params, spec
    ) -> DraftSide:
        predictor, known = self._predictor, (self.predictor_leaves(leaves), decoder, caches.predictor)
        # A predictor with logits of its own does not leave them to the head.
        has_hidden = predictor is not None and getattr(type(predictor), "predict", None) is AdapterPredictor.predict
        options = {"couple_noise": self.drafting.couple_noise}
        evidence = Evidence.of_window(params, spec, base, window, decoder.config.vocab_size, **options)
        return self.side_type(
            draft=self.draft_of(leaves),
            context=caches.context,
            predict=None if predictor is None else partial(predictor.predict, *known),
            predict_hidden=partial(predictor.predict_hidden, *known) if has_hidden else None,
            decoder=decoder,
            evidence=evidence,
            num_drafts=self.num_drafts,
        )

    def _as_read[M: nnx.Module](self, module: M) -> M:
        weights = self.drafting.draft_weights
        return module if weights == "given" else quantized(module, weights)

    @property
    def _with_logprobs(self) -> bool:
        return self.foresees and self.drafting.outcome_rule in ("calibrated", "draft_model")

    def draft_of(self, leaves: Leaves) -> Draft:
        """The draft over placed leaves."""
        return self._definition.merge(leaves[: len(self._leaves)])

    def predictor_leaves(self, leaves: Leaves) -> Leaves:
        """The predictor's share of placed leaves."""
        return leaves[len(self._leaves) : len(leaves) - self._num_calibrated]

    def _calibration(self, leaves: Leaves) -> Calibration | None:
        return None if self.calibration is None else Calibration(*leaves[-self._num_calibrated :])
