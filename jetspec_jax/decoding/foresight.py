"""The foresight round: blocks for the likeliest outcomes of a verification, drafted while it runs (handbook 7.7).

Nothing here can change the text. Everything is a pure function over fixed shapes: one executable per configuration.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jetspec_jax.decoding.draft_side import DraftSide, noise_tokens
from jetspec_jax.decoding.outcome_cache import OutcomeCache
from jetspec_jax.decoding.outcomes import Calibration, select_outcomes
from jetspec_jax.decoding.proposal import Proposal
from jetspec_jax.decoding.row_params import RowParams
from jetspec_jax.decoding.state import Verdict, write_tokens
from jetspec_jax.drafting_config import DraftingConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ForesightState:
    """The draft side of a batch between rounds; on a second device it is all that lives there.

    Attributes:
        tokens: [B, S], committed tokens up to `length`, garbage after it.
        length: [B], committed tokens.
        request, round: [B], as in `RoundState`.
        caches: the drafter's own.
    """

    tokens: Int[Array, "B S"]
    length: Int[Array, "B"]
    request: Int[Array, "B"]
    round: Int[Array, "B"]
    caches: Any

    def absorb(self, verdict: Verdict) -> "ForesightState":
        """The text after a verification; the caches catch up by themselves."""
        tokens = write_tokens(self.tokens, verdict.rows.tokens, verdict.rows.start)
        length = verdict.rows.start + verdict.rows.num_kept + 1
        return replace(
            self,
            tokens=write_tokens(tokens, verdict.anchor[:, None], length - 1),
            length=length,
            round=self.round + verdict.is_active.astype(jnp.int32),
        )

    @property
    def anchor(self) -> Int[Array, "B"]:
        """The last committed token of each row."""
        return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)[:, 0]


def foresee(
    side: DraftSide,
    state: ForesightState,
    block: Proposal,
    logits: jax.Array,
    params: RowParams,
    config: DraftingConfig,
    calibration: Calibration | None,
    num_rows: int,
    *,
    keep_evidence: bool = False,
) -> OutcomeCache:
    """Chooses outcomes of the verification of `block` and drafts a block for each.

    Args:
        side: its caches hold true states before the anchor and predicted ones of the block's rows from there on.
        state: the text up to the anchor.
        block: what is being verified.
        logits: [B, G + 1, V], the decoder's for the block's rows.
        params: for the noise of unknown rows.
        config, calibration: which outcomes, how refined.
        num_rows: rows of a draft pass.
        keep_evidence: hand on what the outcomes were chosen by.
    """
    anchor_at = state.length - 1  # n
    positions = state.length[:, None] + jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :]
    evidence = side.evidence.of_outcomes(logits, positions, config.decision_temperature)
    outcomes = select_outcomes(
        evidence,
        block.tokens,
        jnp.zeros(block.tokens.shape, jnp.float32) if block.logprobs is None else block.logprobs,
        num_outcomes=config.num_outcomes,
        rule=config.outcome_rule,
        calibration=calibration,
        acceptance_prior=config.acceptance_prior,
    )
    # Outcome (k, a): the block's tokens 1..k are text, a follows at n + k + 1.
    start = anchor_at[:, None] + outcomes.num_accepted + 1
    tokens = write_tokens(state.tokens, block.tokens, state.length)
    noise = noise_tokens(params.key, tokens, outcomes.anchor, start, num_rows)
    proposals = side.draft_blocks(
        outcomes.anchor, start, noise, config.refine, with_logprobs=block.logprobs is not None
    )
    mass = jnp.broadcast_to(outcomes.mass[:, None], start.shape)
    proposals = replace(proposals, is_hit=outcomes.is_valid, mass=mass)
    return OutcomeCache(state.request, state.round, outcomes, proposals, evidence if keep_evidence else None)
