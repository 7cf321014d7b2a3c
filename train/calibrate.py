"""Calibration of outcome scores from held-out rounds of a trained drafter (handbook 7.6).

Prompts fall into three parts: on the first the decision temperature, the six coefficients and the anchor temperature
are fitted; on the second, decoded with them, the split-conformal threshold; the third reports. A bad fit costs cache
misses, never a wrong token. What this does not do: train, or measure τ (`train/evaluate.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from jetspec_jax.checkpoints.calibration_file import CalibrationEntry, load_calibrations, save_calibrations
from jetspec_jax.decoding.outcomes import Calibration, conformal_threshold
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DECISION_TEMPERATURE
from jetspec_jax.language_model import LanguageModel
from train.evaluate import EvaluationPoint
from train.outcome_rounds import ANCHOR_TEMPERATURES, OutcomeRecord, collect_rounds

# Decision temperatures that are tried, relative to the default.
DECISION_DIVISORS = np.geomspace(1 / 8, 8, 13)
# Strength of the pull towards "believe the decoder" in the log-likelihood: that of a handful of drafts, so that drafts
# that are always accepted do not send a coefficient to infinity.
RIDGE = 1.0
IDENTITY = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])


@dataclass(frozen=True, kw_only=True)
class FittedScores:
    """Fit of the first part; see `Calibration`.

    Attributes:
        coefficients, anchor_temperature: for evidence at `decision_divisor`.
        decision_divisor: index of the best of the tried divisors.
    """

    coefficients: tuple[float, ...]
    anchor_temperature: float
    decision_divisor: int


@dataclass(frozen=True, kw_only=True)
class CalibrationReport:
    """How the calibration does on rounds that nothing was fitted on.

    Attributes:
        num_rounds: of the three parts.
        error_before, error_after: expected calibration error of the acceptance of reached drafts, by the decoder's own
            probabilities and by the fitted ones.
        hit_rate_before, hit_rate_after: share of outcomes among the `num_outcomes` best, without and with the
            coefficients and the anchor temperature, on the same rounds.
        hit_rate: what is left of the latter after pruning by the threshold.
        coverage: share of outcomes that are not behind the threshold; None without one.
    """

    num_rounds: tuple[int, int, int]
    error_before: float
    error_after: float
    hit_rate_before: float
    hit_rate_after: float
    hit_rate: float
    coverage: float | None


def fit_acceptance(
    features: Float[np.ndarray, "N 6"], is_accepted: Bool[np.ndarray, "N"], *, ridge: float = RIDGE
) -> Float[np.ndarray, "6"]:
    """Coefficients of the logistic regression of acceptance on the features, by damped Newton steps in fp64.

    Args:
        features: of reached drafts.
        is_accepted: whether they were accepted.
        ridge: weight of the squared distance to `IDENTITY`.

    Raises:
        ValueError: no draft, or features that are not finite.
    """
    features = features.astype(np.float64)
    if not len(features) or not np.isfinite(features).all():
        raise ValueError(f"need finite features of at least one draft, got shape {features.shape}")

    def loss(weights):
        log_odds = features @ weights
        nll = np.sum(np.logaddexp(0, log_odds)) - np.sum(log_odds[is_accepted])
        return nll + 0.5 * ridge * np.sum((weights - IDENTITY) ** 2)

    weights, best = IDENTITY.copy(), loss(IDENTITY)
    for _ in range(100):
        probs = _sigmoid(features @ weights)
        gradient = features.T @ (probs - is_accepted) + ridge * (weights - IDENTITY)
        curvature = (features * (probs * (1 - probs))[:, None]).T @ features + ridge * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        # The loss is convex, but a full step overshoots where most drafts are certain.
        size = next((s for s in 0.5 ** np.arange(30) if loss(weights - s * step) <= best), 0.0)
        weights = weights - size * step
        gain, best = best - loss(weights), loss(weights)
        if gain <= 1e-9 * max(1.0, abs(best)):
            break
    return weights


def best_temperature(temperatures: Float[np.ndarray, "A"], nll: Float[np.ndarray, "A"]) -> float:
    """Where the mean negative log-likelihood is smallest: the best of a geometric grid, refined by a parabola.

    Args:
        temperatures: rising, equal ratios.
        nll: of each.
    """
    best = int(np.argmin(nll))
    if best in (0, len(nll) - 1):
        return float(temperatures[best])
    before, at, after = nll[best - 1 : best + 2]
    bend = before - 2 * at + after
    shift = 0.5 * (before - after) / bend if bend > 0 else 0.0
    return float(temperatures[best] * (temperatures[1] / temperatures[0]) ** shift)


def calibration_error(probs: Float[np.ndarray, "N"], is_true: Bool[np.ndarray, "N"], *, num_bins: int = 15) -> float:
    """Expected calibration error: mean distance of predicted and found frequency over bins of equal width."""
    bins = np.minimum((probs * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, probs - is_true, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(probs))


def fit_scores(rounds: OutcomeRecord, divisors: Float[np.ndarray, "M"]) -> FittedScores:
    """Fits everything but the threshold.

    Args:
        rounds: recorded with `divisors`.
        divisors: of the evidence.
    """
    is_possible = np.isfinite(rounds.outcome_nll).all(axis=1) & np.isfinite(rounds.anchor_nll).all(axis=1)
    if not is_possible.any():
        raise ValueError(f"none of {len(is_possible)} outcomes was possible by the decoder's evidence")
    best = int(np.argmin(rounds.outcome_nll[is_possible].mean(axis=0)))
    reached = rounds.is_reached
    # The anchors were judged by the evidence at divisor 1; dividing it already leaves less to do.
    warmth = best_temperature(ANCHOR_TEMPERATURES, rounds.anchor_nll[is_possible].mean(axis=0))
    return FittedScores(
        coefficients=tuple(fit_acceptance(rounds.features[:, best][reached], rounds.is_accepted[reached]).tolist()),
        anchor_temperature=warmth / float(divisors[best]),
        decision_divisor=best,
    )


def calibrate(
    model: LanguageModel,
    drafter: JetSpecPP,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    coverage: float | None = 0.99,
    max_new_tokens: int = 256,
    batch_size: int = 64,
    seed: int = 0,
) -> tuple[CalibrationEntry, CalibrationReport]:
    """Fits one calibration by decoding the prompts.

    Args:
        model: gives the target.
        drafter: trained, with foresight; refinement, number of outcomes and coupling are what is calibrated for.
        prompts: held out from training, at least three; the more tokens the better (3,000 rounds are plenty).
        temperature: of the sampling, 0 for greedy.
        coverage: 1 - ε of the conformal threshold; None prunes nothing.
        max_new_tokens, batch_size, seed: of the decoding.

    Raises:
        ValueError: fewer than three prompts, or a drafter without foresight.
    """
    if len(prompts) < 3:
        raise ValueError(f"three parts need at least 3 prompts, got {len(prompts)}")
    # Chance is not the decoder's error: where the draw is open its logits are not divided by anything.
    is_decided = temperature == 0 or drafter.drafting.couple_noise
    divisors = DECISION_DIVISORS if is_decided else np.ones(1)
    options = {"max_new_tokens": max_new_tokens, "batch_size": batch_size, "temperature": temperature}

    def served(calibration: Calibration, decision_temperature: float) -> JetSpecPP:
        return drafter.with_drafting(
            calibration=calibration, outcome_rule="calibrated", decision_temperature=decision_temperature
        )

    first = served(Calibration.identity(), DECISION_TEMPERATURE)
    rounds, _ = collect_rounds(model, first, prompts[::3], divisors=divisors.tolist(), seed=seed, **options)
    scores = fit_scores(rounds, divisors)
    entry = CalibrationEntry(
        temperature=float(temperature),
        refine=drafter.drafting.refine.name,
        num_outcomes=drafter.drafting.num_outcomes,
        coefficients=scores.coefficients,
        anchor_temperature=scores.anchor_temperature,
        conformal_threshold=1.0,
        decision_temperature=DECISION_TEMPERATURE * float(divisors[scores.decision_divisor]),
        num_rounds=len(rounds.num_accepted),
        coverage=coverage,
    )
    others = [prompt for index, prompt in enumerate(prompts) if index % 3]
    fitted = served(entry.to_calibration(), entry.decision_temperature)
    rest, owners = collect_rounds(model, fitted, others, seed=seed + len(prompts), **options)
    conformal, check = rest[owners % 2 == 0], rest[owners % 2 == 1]
    if coverage is not None:
        entry = replace(entry, conformal_threshold=conformal_threshold(conformal.preceding_mass, coverage))
    sizes = (len(rounds.num_accepted), len(conformal.num_accepted), len(check.num_accepted))
    if not all(sizes):
        raise ValueError(f"three parts need rounds, got {sizes}; give more prompts or longer answers")
    return replace(entry, num_rounds=sum(sizes[:2])), _report(entry, check, sizes)


def _report(entry: CalibrationEntry, check: OutcomeRecord, sizes: tuple[int, int, int]) -> CalibrationReport:
    reached, is_kept = check.is_reached, check.preceding_mass <= np.float32(entry.conformal_threshold)
    features, is_accepted = check.features[:, 0][reached].astype(np.float64), check.is_accepted[reached]
    is_hit = check.rank < entry.num_outcomes
    return CalibrationReport(
        num_rounds=sizes,
        error_before=calibration_error(_sigmoid(features @ IDENTITY), is_accepted),
        error_after=calibration_error(_sigmoid(features @ np.array(entry.coefficients)), is_accepted),
        hit_rate_before=float(np.mean(check.uncalibrated_rank < entry.num_outcomes)),
        hit_rate_after=float(np.mean(is_hit)),
        hit_rate=float(np.mean(is_hit & is_kept)),
        coverage=None if entry.coverage is None else float(np.mean(is_kept)),
    )


def calibrate_points(
    model: LanguageModel,
    drafter: JetSpecPP,
    points: Sequence[EvaluationPoint],
    prompts: Sequence[Sequence[int]],
    path: Path,
    *,
    note: Callable[[str], Any] = print,
    **options: Any,
) -> list[CalibrationEntry]:
    """Calibrates a drafter for several points and merges the entries into its calibration file.

    Args:
        model, drafter, prompts: as for `calibrate`.
        points: temperature, refinement, number of outcomes and coupling; their rule and decision temperature are not
            looked at.
        path: of the file; written after every point, entries for other points stay.
        note: told a line per point.
        **options: for `calibrate`.

    Returns:
        All entries of the file.
    """
    entries = {entry.key: entry for entry in load_calibrations(path)} if path.exists() else {}
    for point in points:
        at_point = replace(point, outcome_rule="uncalibrated").drafter(drafter)
        entry, report = calibrate(model, at_point, prompts, temperature=point.temperature, **options)
        entries[entry.key] = entry
        save_calibrations(path, list(entries.values()))
        note(f"{point.name}: {entry}\n  {report}")
    return list(entries.values())


def _sigmoid(log_odds: Float[np.ndarray, "*N"]) -> Float[np.ndarray, "*N"]:
    return np.exp(-np.logaddexp(0, -log_odds))
