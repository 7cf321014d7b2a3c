"""Which outcomes of a verification are worth drafting for before it is known (handbook 7.6, 9.1).

An outcome is (k, a): k drafts are accepted and the target draws the anchor a after them. Everything is scored from
evidence, the decoder's estimate of the target's logits: row o is about position n+o+1 given the drafts before it, so
row i-1 judges draft i and row k ranks the anchors of length k. Rows may be logits of a distribution (divided by the
temperature) or include the position's Gumbel noise; nothing here depends on which. A wrong score costs a cache miss,
never a wrong token. What this does not do: fit the calibration, or draft.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.fan_out import integer_fan_out, length_prior
from jetspec_jax.decoding.verify import NO_TOKEN
from jetspec_jax.drafting_config import OutcomeRule
from jetspec_jax.ops.top_k import top_k

OUTCOME_RULES: tuple[str, ...] = get_args(OutcomeRule)

# Features beyond this say "certain" either way (e^-12 = 6e-6). Also keeps them finite: a truncated vocabulary gives
# drafts without a rival, and rivals without a draft.
FEATURE_LIMIT = 12.0
# ρ of the geometric rule: F anchors of a length hold the right one with probability 1 - F^-ρ.
FAN_OUT_POWER = 1.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Calibration:
    """Fitted parts of the calibrated rule, one set per temperature and configuration (handbook 7.6).

    Attributes:
        coefficients: per unit of `calibration_features`, in log-odds of acceptance; from logistic regression on the
            reached drafts of held-out rounds.
        anchor_temperature: divides the evidence that ranks anchors (no unit, 1 = as the caller scaled it); from the
            likelihood of the anchors of held-out rounds.
        conformal_threshold: score mass in [0, 1] before which the true outcome is expected; from `conformal_threshold`.
    """

    coefficients: Float[Array, "6"]
    anchor_temperature: Float[Array, ""]
    conformal_threshold: Float[Array, ""]

    @classmethod
    def identity(cls) -> "Calibration":
        """Believes the decoder and prunes nothing: the uncalibrated rule, up to the clip of its log-odds."""
        one = jnp.ones((), jnp.float32)
        return cls(jnp.asarray([0, 1, 0, 0, 0, 0], jnp.float32), one, one)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Outcomes:
    """The outcomes to draft for, best first; the valid (num_accepted, anchor) of a request are distinct.

    Attributes:
        num_accepted: k, the accepted drafts.
        anchor: the target's token after them.
        log_score: natural log of the outcome's score, a probability as the rule sees it; -inf for an impossible one.
        is_valid: False for impossible and for pruned rows; their other fields mean nothing, but are in range.
    """

    num_accepted: Int[Array, "B R"]
    anchor: Int[Array, "B R"]
    log_score: Float[Array, "B R"]
    is_valid: Bool[Array, "B R"]

    @property
    def mass(self) -> Float[Array, "B"]:
        """Predicted probability that the outcome is among the valid rows."""
        return jnp.sum(jnp.where(self.is_valid, jnp.exp(self.log_score), 0.0), axis=1)


class _Contest(NamedTuple):
    """The evidence of each row, split into its draft and the draft's rivals; rows without a draft have only rivals."""

    drafted: Float[Array, "B T"]  # evidence of the row's draft, -inf without one
    rivals: Float[Array, "B T V"]  # the evidence with the row's draft removed (-inf)
    best_rival: Float[Array, "B T"]

    @property
    def margin(self) -> Float[Array, "B T"]:
        return self.drafted - self.best_rival

    @property
    def log_odds(self) -> Float[Array, "B T"]:
        """z_d - logsumexp of the rivals; NaN if the row has no usable evidence."""
        return self.margin - self.log_spread(1.0)

    def log_spread(self, temperature: float | Float[Array, ""]) -> Float[Array, "B T"]:
        """Log of the rivals' summed probability relative to the best rival; >= 0, -inf without a rival."""
        # Differences first: logits of 1e4 would leave three digits of the logsumexp itself.
        origin = jnp.where(jnp.isfinite(self.best_rival), self.best_rival, 0.0)
        return jnp.log(jnp.sum(jnp.exp((self.rivals - origin[..., None]) / temperature), axis=-1))


def _contest(evidence, drafts) -> _Contest:
    evidence = evidence.astype(jnp.float32)
    vocab_ids = jnp.arange(evidence.shape[-1], dtype=jnp.int32)[None, None, :]
    # Ids that are no token, NO_TOKEN first of all, match nothing: evidence -inf, and no anchor is removed.
    is_draft = vocab_ids == jnp.pad(drafts, ((0, 0), (0, 1)), constant_values=NO_TOKEN)[..., None]
    rivals = jnp.where(is_draft, -jnp.inf, evidence)
    drafted = jnp.max(jnp.where(is_draft, evidence, -jnp.inf), axis=-1)
    return _Contest(drafted, rivals, jnp.max(rivals, axis=-1))


def _both_ways(log_odds):
    return jax.nn.log_sigmoid(log_odds), jax.nn.log_sigmoid(-log_odds)


def acceptance_log_probs(
    evidence: Float[Array, "B T V"], drafts: Int[Array, "B G"]
) -> tuple[Float[Array, "B G"], Float[Array, "B G"]]:
    """Log-probabilities that each draft is accepted, and rejected, once it is reached: log π and log (1 - π)."""
    return _both_ways(_contest(evidence, drafts).log_odds[:, :-1])


def length_log_probs(log_accept: Float[Array, "B G"], log_reject: Float[Array, "B G"]) -> Float[Array, "B T"]:
    """log P(k), k = 0..γ: the first k drafts are accepted and the next, if there is one, is rejected."""
    return _log_reached(log_accept) + jnp.pad(log_reject, ((0, 0), (0, 1)))


def _log_reached(log_accept):
    return jnp.pad(jnp.cumsum(log_accept, axis=1), ((0, 0), (1, 0)))


def outcome_log_probs(evidence: Float[Array, "B T V"], drafts: Int[Array, "B G"]) -> Float[Array, "B T V"]:
    """log P(k, a) of every outcome if the evidence is the target's law; -inf for a = d_{k+1}, which k excludes.

    A row without usable evidence (all -inf, a NaN, a +inf) is NaN, and so is what lies beyond it.
    """
    contest = _contest(evidence, drafts)
    log_accept, _ = _both_ways(contest.log_odds[:, :-1])
    log_all = jnp.logaddexp(contest.margin, contest.log_spread(1.0))  # relative to the best rival
    # Without a rival the draft is the only token, and the row holds no outcome.
    origin = jnp.where(contest.best_rival == -jnp.inf, 0.0, contest.best_rival)
    relative = contest.rivals - origin[..., None]
    return (_log_reached(log_accept) - log_all)[..., None] + relative


def calibration_features(
    evidence: Float[Array, "B T V"], drafts: Int[Array, "B G"], draft_logprobs: Float[Array, "B G"]
) -> Float[Array, "B G 6"]:
    """What the calibrated acceptance of draft i is a logistic regression on.

    [1, decoder log-odds of the draft, decoder margin to the best other token, log-odds of the draft under its author,
    log i (from 1), decoder entropy in nats]; the log-odds and the margin are clipped to ±`FEATURE_LIMIT`.
    """
    return _features(evidence, _contest(evidence, drafts), draft_logprobs)


def _features(evidence, contest: _Contest, draft_logprobs):
    decided = evidence[:, :-1].astype(jnp.float32)
    log_probs = jax.nn.log_softmax(decided, axis=-1)
    probs = jnp.exp(log_probs)
    entropy = -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0.0), axis=-1)
    offsets = jnp.arange(1, decided.shape[1] + 1, dtype=jnp.float32)
    clipped = [
        jnp.clip(feature, -FEATURE_LIMIT, FEATURE_LIMIT)
        for feature in (contest.log_odds[:, :-1], contest.margin[:, :-1], _logit_of(draft_logprobs))
    ]
    log_offset = jnp.broadcast_to(jnp.log(offsets)[None, :], entropy.shape)
    return jnp.stack([jnp.ones_like(entropy), *clipped, log_offset, entropy], axis=-1)


def _logit_of(logprobs):
    logprobs = jnp.minimum(logprobs.astype(jnp.float32), 0.0)  # a rounded log-softmax may exceed 0
    return logprobs - jnp.log(-jnp.expm1(logprobs))


def select_outcomes(
    evidence: Float[Array, "B T V"],
    drafts: Int[Array, "B G"],
    draft_logprobs: Float[Array, "B G"],
    *,
    num_outcomes: int,
    rule: OutcomeRule | str = "uncalibrated",
    calibration: Calibration | None = None,
    acceptance_prior: float = 0.8,
) -> Outcomes:
    """The `num_outcomes` (R) best outcomes of all lengths, by P(k) times the anchor's probability at that length.

    The rule says where P(k) comes from; anchors are always the decoder's. Ties go to the smaller k, then to the better
    anchor, then to the smaller token.

    Args:
        evidence: the decoder's logits as the caller scaled them.
        drafts: the G = T - 1 drafts under verification; `NO_TOKEN` is never accepted, under any rule.
        draft_logprobs: log-probability that the author of each draft gave it.
        num_outcomes: rows of the cache; at most T min(R, V).
        rule: `uncalibrated` believes the decoder, `calibrated` corrects it by `calibration` and prunes, `draft_model`
            believes the drafts' author, `length_prior` accepts each draft with `acceptance_prior`, `geometric` is the
            latter with a fixed number of anchors per length (`fan_out.py`), `uniform` gives all lengths the same.
        calibration: read by `calibrated` alone.
        acceptance_prior: read by `length_prior` and `geometric` alone.
    """
    num_rows, vocab_size = evidence.shape[1:]
    num_anchors = min(num_outcomes, vocab_size)
    _check(drafts.shape[1], num_rows, num_anchors, num_outcomes, rule, calibration, acceptance_prior)
    contest = _contest(evidence, drafts)

    is_token = (drafts >= 0) & (drafts < vocab_size)
    log_odds = _acceptance_log_odds(rule, evidence, contest, is_token, draft_logprobs, calibration, acceptance_prior)
    log_length = length_log_probs(*_both_ways(jnp.where(is_token, log_odds, -jnp.inf)))

    temperature = calibration.anchor_temperature if rule == "calibrated" else 1.0
    log_anchor, anchors = _best_anchors(contest, num_anchors, temperature)  # [B, T, A]
    scores = log_length[..., None] + log_anchor
    if rule == "geometric":
        fan_out = integer_fan_out(length_prior(acceptance_prior, num_rows - 1), num_outcomes, FAN_OUT_POWER)
        is_kept = np.arange(num_anchors)[None, :] < fan_out[:, None]
        scores = jnp.where(is_kept[None], scores, -jnp.inf)
    # NaN: a row without usable evidence, what lies beyond it, a length without anchors. top_k would put it first.
    scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)

    # Row-major, and top_k is stable: ties go to the smaller k, then to the better-ranked anchor.
    log_score, index = jax.lax.top_k(scores.reshape(scores.shape[0], -1), num_outcomes)  # [B, R]
    is_valid = log_score > -jnp.inf
    if rule == "calibrated":
        is_valid &= _preceding_mass(log_score) <= calibration.conformal_threshold
    anchor = jnp.take_along_axis(anchors.reshape(scores.shape[0], -1), index, axis=1)
    return Outcomes((index // num_anchors).astype(jnp.int32), anchor.astype(jnp.int32), log_score, is_valid)


def _check(num_drafts, num_rows, num_anchors, num_outcomes, rule, calibration, acceptance_prior) -> None:
    if num_drafts != num_rows - 1:
        raise ValueError(f"{num_drafts} drafts need {num_drafts + 1} rows of evidence, got {num_rows}")
    if rule not in OUTCOME_RULES:
        raise ValueError(f"unknown outcome rule {rule!r}, known: {', '.join(OUTCOME_RULES)}")
    if not 1 <= num_outcomes <= num_rows * num_anchors:
        raise ValueError(f"need 1 <= num_outcomes <= {num_rows} lengths * {num_anchors} anchors, got {num_outcomes}")
    if rule == "calibrated" and calibration is None:
        raise ValueError("rule 'calibrated' needs a calibration, got None")
    if not 0 < acceptance_prior < 1:
        raise ValueError(f"need 0 < acceptance_prior < 1, got {acceptance_prior}")


def _acceptance_log_odds(rule, evidence, contest: _Contest, is_token, draft_logprobs, calibration, acceptance_prior):
    if rule == "uncalibrated":
        return contest.log_odds[:, :-1]
    if rule == "calibrated":
        # Not a matmul: six terms deserve full fp32 on every device.
        features = _features(evidence, contest, draft_logprobs)
        return jnp.sum(features * calibration.coefficients[None, None, :], axis=-1)
    if rule == "draft_model":
        return _logit_of(draft_logprobs)
    if rule == "uniform":
        # With g proposals, accepting draft i with odds g + 1 - i makes each of the lengths 0..g equally likely.
        num_proposed = jnp.sum(jnp.cumprod(is_token.astype(jnp.int32), axis=1), axis=1)
        offsets = jnp.arange(1, is_token.shape[1] + 1, dtype=jnp.int32)
        return jnp.log(jnp.maximum(num_proposed[:, None] + 1 - offsets[None, :], 0).astype(jnp.float32))
    return jnp.full(is_token.shape, math.log(acceptance_prior) - math.log1p(-acceptance_prior), jnp.float32)


def _best_anchors(contest: _Contest, num_anchors: int, temperature):
    """The likeliest anchors of each length and their log-probabilities; NaN without a rival to the draft."""
    evidence, anchors = top_k(contest.rivals, num_anchors)
    relative = (evidence - contest.best_rival[..., None]) / temperature
    return relative - contest.log_spread(temperature)[..., None], anchors


def _preceding_mass(log_score):
    before = jnp.pad(jnp.cumsum(jnp.exp(log_score), axis=1)[:, :-1], ((0, 0), (1, 0)))
    return jnp.minimum(before, 1.0)  # a rounded sum may exceed 1, but a threshold of 1 must not prune


def conformal_threshold(preceding_mass: Float[np.ndarray, "N"], coverage: float) -> float:
    """Split-conformal threshold: in new rounds the true outcome is reached with probability >= coverage.

    The ⌈(n+1) coverage⌉-th smallest of the n values, or 1 if n is too small to promise anything.

    Args:
        preceding_mass: of each calibration round, the summed scores of the outcomes ranked strictly above the true one.
        coverage: 1 - ε.
    """
    if not 0 < coverage < 1 or not np.all((preceding_mass >= 0) & (preceding_mass <= 1)):
        raise ValueError(f"need 0 < coverage < 1 and masses in [0, 1], got {coverage=}, {preceding_mass=}")
    rank = math.ceil((preceding_mass.size + 1) * coverage - 1e-9)  # 100 * .07 = 7.000000000000001
    return float(np.sort(preceding_mass)[rank - 1]) if rank <= preceding_mass.size else 1.0
