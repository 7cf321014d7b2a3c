"""Held-out rounds for calibration: what the decoder said of each outcome, and which one came (handbook 7.6).

Rounds are decoded by the fused programs that serve, so that features and rankings are the served ones. Everything that
needs the evidence `[B, T, V]` is computed on the device beside the round; the host gets a few numbers a round.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.foresight_programs import FusedPrograms
from jetspec_jax.decoding.outcomes import (
    Calibration,
    Outcomes,
    calibration_features,
    outcome_log_probs,
    select_outcomes,
)
from jetspec_jax.decoding.state import DraftReport
from jetspec_jax.decoding.verify import NO_TOKEN
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.evaluation.acceptance import answer_prompts
from jetspec_jax.language_model import LanguageModel

# An outcome that is not among so many is taken to have all the mass before it.
NUM_RANKED = 64
# Divisors of the evidence that anchors are judged with.
ANCHOR_TEMPERATURES = np.geomspace(1 / 16, 16, 33)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OutcomeRecord:
    """One round of N requests, or N rounds; numpy on the host. `M` divisors of the evidence, `A` of an anchor's row.

    Attributes:
        features: of the acceptance of each draft, with the evidence divided by each of the M divisors.
        is_draft: False where nothing was proposed.
        num_accepted: k; -1 for requests that had ended.
        outcome_nll: -log probability of the outcome that came, uncalibrated, by divisor; +inf if it was impossible.
        anchor_nll: -log probability of its anchor given k, by divisor (`ANCHOR_TEMPERATURES`).
        rank: its place among the ranked outcomes under the calibration, `NUM_RANKED` or fewer if it is not there.
        preceding_mass: score mass of the outcomes before it; 1 if it is not there.
        uncalibrated_rank: its place under the uncalibrated rule.
    """

    features: Float[Array, "N M G 6"]
    is_draft: Bool[Array, "N G"]
    num_accepted: Int[Array, "N"]
    outcome_nll: Float[Array, "N M"]
    anchor_nll: Float[Array, "N A"]
    rank: Int[Array, "N"]
    preceding_mass: Float[Array, "N"]
    uncalibrated_rank: Int[Array, "N"]

    @property
    def is_reached(self) -> Bool[np.ndarray, "N G"]:
        """Drafts that the verification judged: all before them were accepted; on the host."""
        return self.is_draft & (np.arange(self.is_draft.shape[1])[None, :] <= self.num_accepted[:, None])

    @property
    def is_accepted(self) -> Bool[np.ndarray, "N G"]:
        """Drafts that it accepted; on the host."""
        return self.is_draft & (np.arange(self.is_draft.shape[1])[None, :] < self.num_accepted[:, None])

    def __getitem__(self, rows: Any) -> "OutcomeRecord":
        """Some of the rounds."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


def record_outcome(
    evidence: Float[Array, "N T V"],
    drafts: Int[Array, "N G"],
    draft_logprobs: Float[Array, "N G"],
    num_accepted: Int[Array, "N"],
    anchor: Int[Array, "N"],
    calibration: Calibration,
    divisors: Float[Array, "M"],
) -> OutcomeRecord:
    """What the evidence said before the outcome (num_accepted, anchor) came; traceable.

    Args:
        evidence, drafts, draft_logprobs: as for `select_outcomes`.
        num_accepted, anchor: the outcome; -1 accepted drafts for requests that had ended.
        calibration: what outcomes are ranked with; its threshold is not looked at.
        divisors: further decision temperatures to try, relative to the evidence's.
    """
    length = jnp.maximum(num_accepted, 0)

    def at(divisor):
        scaled = evidence / divisor
        row = jnp.take_along_axis(outcome_log_probs(scaled, drafts), length[:, None, None], axis=1)[:, 0]
        nll = -jnp.take_along_axis(row, anchor[:, None], axis=1)[:, 0]
        return calibration_features(scaled, drafts, draft_logprobs), nll

    features, outcome_nll = jax.lax.map(
        at, divisors
    )  # [M, N, ..]: one divisor at a time needs one copy of the evidence
    calibrated, uncalibrated = (
        select_outcomes(
            evidence,
            drafts,
            draft_logprobs,
            num_outcomes=min(NUM_RANKED, evidence.shape[1] * evidence.shape[2]),
            rule=rule,
            calibration=replace(calibration, conformal_threshold=jnp.ones((), jnp.float32)),
        )
        for rule in ("calibrated", "uncalibrated")
    )
    rank, preceding_mass = _place(calibrated, num_accepted, anchor)
    return OutcomeRecord(
        features=jnp.swapaxes(features, 0, 1),
        is_draft=drafts != NO_TOKEN,
        num_accepted=num_accepted,
        outcome_nll=outcome_nll.T,
        anchor_nll=_anchor_nll(evidence, drafts, length, anchor),
        rank=rank,
        preceding_mass=preceding_mass,
        uncalibrated_rank=_place(uncalibrated, num_accepted, anchor)[0],
    )


def _anchor_nll(evidence, drafts, length, anchor) -> Float[Array, "N A"]:
    row = jnp.take_along_axis(evidence, length[:, None, None], axis=1)[:, 0]
    draft = jnp.take_along_axis(jnp.pad(drafts, ((0, 0), (0, 1)), constant_values=NO_TOKEN), length[:, None], axis=1)
    rivals = jnp.where(jnp.arange(row.shape[1], dtype=jnp.int32)[None, :] == draft, -jnp.inf, row)
    # Differences first: large logits would leave few digits of the logsumexp.
    rivals = rivals - jnp.max(rivals, axis=1, keepdims=True)
    chosen = jnp.take_along_axis(rivals, anchor[:, None], axis=1)[:, 0]

    def at(temperature):
        return jax.nn.logsumexp(rivals / temperature, axis=1) - chosen / temperature

    return jax.lax.map(at, jnp.asarray(ANCHOR_TEMPERATURES, jnp.float32)).T


def _place(outcomes: Outcomes, num_accepted, anchor):
    """Rank of the outcome and the score mass before it."""
    is_it = (outcomes.num_accepted == num_accepted[:, None]) & (outcomes.anchor == anchor[:, None]) & outcomes.is_valid
    is_there = jnp.any(is_it, axis=1)
    rank = jnp.where(is_there, jnp.argmax(is_it, axis=1), is_it.shape[1])
    scores = jnp.where(outcomes.is_valid, jnp.exp(outcomes.log_score), 0.0)
    before = jnp.pad(jnp.cumsum(scores, axis=1), ((0, 0), (1, 0)))
    mass = jnp.take_along_axis(before, rank[:, None], axis=1)[:, 0]
    return rank.astype(jnp.int32), jnp.where(is_there, jnp.minimum(mass, 1.0), 1.0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _RecordedReport(DraftReport):
    record: OutcomeRecord | None = None


class RecordingPrograms(FusedPrograms):
    """The fused programs with a record of every round; the text and the blocks are those of `FusedPrograms`.

    Attributes:
        records: of the rounds so far, on the device.
        divisors: as for `record_outcome`.
    """

    def __init__(self, model: LanguageModel, drafter: JetSpecPP, divisors: Sequence[float]):
        if not drafter.foresees or drafter.drafting.outcome_rule != "calibrated":
            raise ValueError(
                f"only foresight with the calibrated rule can be recorded, got num_outcomes="
                f"{drafter.drafting.num_outcomes}, outcome_rule={drafter.drafting.outcome_rule!r}"
            )
        drafter = copy(drafter)
        drafter.keeps_evidence = True
        super().__init__(model.programs.definition, model.programs.target_leaves, drafter, model.device)
        self.records: list[OutcomeRecord] = []
        self.divisors = np.asarray(divisors, np.float32)

    def select(self, leaves, decoder, side, cache, block, verdict, params, spec):
        """As the base class, with the record of the verified block beside its report."""
        chosen, side, fared = super().select(leaves, decoder, side, cache, block, verdict, params, spec)
        # The calibration's leaves come last, see `JetSpecPP.place`.
        calibration = jax.tree.unflatten(jax.tree.structure(self.drafter.calibration), leaves[-3:])
        accepted, anchor = verdict.num_accepted, verdict.anchor
        record = record_outcome(
            cache.evidence, block.tokens, block.logprobs, accepted, anchor, calibration, jnp.asarray(self.divisors)
        )
        reported = {field.name: getattr(fared, field.name) for field in fields(fared)}
        return chosen, side, _RecordedReport(**reported, record=record)

    def round(self, state, active, params, spec, *, is_drafting):
        """As the base class; the record stays here."""
        state, out = super().round(state, active, params, spec, is_drafting=is_drafting)
        if out.draft is not None:
            self.records.append(self.executables.copied(out.draft.record, self.device))
            out = replace(out, draft=replace(out.draft, record=None))
        return state, out


def collect_rounds(
    model: LanguageModel,
    drafter: JetSpecPP,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    divisors: Sequence[float] = (1.0,),
    max_new_tokens: int,
    batch_size: int,
    seed: int = 0,
) -> tuple[OutcomeRecord, Int[np.ndarray, "N"]]:
    """Decodes the prompts and keeps every round but the last of each, whose outcome nobody needs.

    Args:
        model: gives the target.
        drafter: with foresight, the calibrated rule and a calibration (the identity to begin with).
        prompts, temperature, max_new_tokens, batch_size, seed: as for `measure_acceptance`.
        divisors: further decision temperatures to try, relative to the drafter's.

    Returns:
        The rounds, and for each the index of its prompt.
    """
    recording = model.with_drafter(drafter)
    recording.programs = programs = RecordingPrograms(model, drafter, divisors)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))  # so rows of a group keep their order
    kept, owners = [], []
    for first in range(0, len(order), batch_size):
        group = order[first : first + batch_size]
        answers = answer_prompts(
            recording,
            [prompts[index] for index in group],
            seeds=[seed + index for index in group],
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            batch_size=batch_size,
        )
        records, programs.records = jax.device_get(programs.records), []
        for row, (index, answer) in enumerate(zip(group, answers, strict=True)):
            ran = [record[row] for record in records if record.num_accepted[row] >= 0]
            # A text that has ended is still verified once or twice, until the host has told the device.
            ran = ran[: max(answer.stats.rounds - 1, 0)]
            kept += ran
            owners += [index] * len(ran)
    if not kept:
        raise ValueError(f"{len(prompts)} prompts with {max_new_tokens=} gave no round to calibrate on")
    return jax.tree.map(lambda *leaves: np.stack(leaves), *kept), np.array(owners)
