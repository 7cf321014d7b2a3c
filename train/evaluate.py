"""Acceptance length at many operating points over many prompt sets, in one JSON file (handbook 8.3).

`tau` of a set is all committed tokens over all rounds; `mean` is the mean of the sets' values. The file is written
after every point, so that a run that is killed keeps what it had, and a later run adds to it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jetspec_jax.checkpoints.calibration_file import CalibrationEntry, nearest
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftWeights, MissPolicy, OutcomeRule, RefineConfig
from jetspec_jax.evaluation.acceptance import Acceptance, answer_prompts
from jetspec_jax.evaluation.record import environment
from jetspec_jax.language_model import LanguageModel

Drafting = Callable[["EvaluationPoint"], JetSpecPP]


@dataclass(frozen=True, kw_only=True)
class EvaluationPoint:
    """One configuration to measure; what is not described here is in `DraftingConfig`.

    Attributes:
        name: key in the record.
        temperature: 0 is greedy.
        refine: `J0`, `J3-R3`, ...
        num_outcomes: 0 drafts on the critical path.
    """

    name: str
    temperature: float = 0.0
    refine: str = "J0"
    num_outcomes: int = 0
    couple_noise: bool = True
    outcome_rule: OutcomeRule | None = None
    miss_policy: MissPolicy = "fallback"
    decision_temperature: float | None = None
    draft_weights: DraftWeights = "given"

    @classmethod
    def parse(cls, name: str) -> "EvaluationPoint":
        """A point by its name: a refinement, then `B=4`, `T=0.7`, `plain` (no coupled noise), `int8` or `fp8`.

        Raises:
            ValueError: another form.
        """
        refine, *options = name.split() or [""]
        RefineConfig.parse(refine)
        fields: dict[str, Any] = {}
        for option in options:
            if match := re.fullmatch(r"B=(\d+)", option):
                fields["num_outcomes"] = int(match[1])
            elif match := re.fullmatch(r"T=(\d+(?:\.\d+)?)", option):
                fields["temperature"] = float(match[1])
            elif option == "plain":
                fields["couple_noise"] = False
            elif option in ("int8", "fp8"):
                fields["draft_weights"] = option
            else:
                raise ValueError(f"point {name!r}: {option!r} is not of the form B=4, T=0.7, plain, int8 or fp8")
        return cls(name=name, refine=refine, **fields)

    def drafter(self, drafter: JetSpecPP) -> JetSpecPP:
        """The same weights at this point."""
        return drafter.with_drafting(
            refine=RefineConfig.parse(self.refine),
            num_outcomes=self.num_outcomes,
            couple_noise=self.couple_noise,
            outcome_rule=self.outcome_rule,
            miss_policy=self.miss_policy,
            decision_temperature=self.decision_temperature,
            draft_weights=self.draft_weights,
        )


def standard_points() -> list[EvaluationPoint]:
    """What a shipped drafter is measured at: refinement, cache size, and temperature with and without coupled noise."""
    refined = ("J1-R1", "J3-R3")
    names = ["J0", *refined]
    names += [f"{refine} B={size}" for refine in refined for size in (1, 2, 4, 8, 16)]
    names += [f"J3-R3 T={temperature:g}{noise}" for temperature in (0.7, 1.0) for noise in ("", " plain")]
    return [EvaluationPoint.parse(name) for name in names]


def calibration_points() -> list[EvaluationPoint]:
    """What a calibration is fitted for; other points take the nearest one, and serving takes that of T = 0."""
    return [EvaluationPoint.parse(f"{refine} B=4") for refine in ("J1-R1", "J3-R3")]


def calibrated_drafting(drafter: JetSpecPP, entries: Sequence[CalibrationEntry]) -> Drafting:
    """The drafter of each point, with the calibration fitted under the most similar conditions where it drafts ahead.

    Args:
        drafter: the weights.
        entries: none leaves outcomes uncalibrated.
    """

    def at(point: EvaluationPoint) -> JetSpecPP:
        found = point.drafter(drafter)
        kind = {"refine": found.drafting.refine.name, "num_outcomes": point.num_outcomes}
        entry = nearest(entries, temperature=point.temperature, **kind)
        # Fits are for coupled noise; without it the evidence means something else.
        is_plain = point.temperature > 0 and not point.couple_noise
        if entry is None or not found.foresees or is_plain or point.outcome_rule not in (None, "calibrated"):
            return found
        decision = entry.decision_temperature if point.decision_temperature is None else point.decision_temperature
        return found.with_drafting(
            calibration=entry.to_calibration(), outcome_rule="calibrated", decision_temperature=decision
        )

    return at


def evaluate_sets(
    model: LanguageModel,
    drafting: Drafting,
    sets: Mapping[str, Sequence[Sequence[int]]],
    points: Sequence[EvaluationPoint],
    path: Path,
    *,
    max_new_tokens: int = 512,
    batch_size: int = 128,
    seed: int = 0,
    note: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Measures every point on all sets together (full batches) and merges the results into a record.

    Args:
        model: gives the target; its own drafter plays no part.
        drafting: the drafter of a point, for example `lambda point: point.drafter(trained)`. Points with the same
            `DraftingConfig` share programs, so their drafters may differ in weights and calibration only.
        sets: prompts as token ids, by name.
        points: names must differ.
        path: of the record; points that it holds already and that are not measured now stay.
        max_new_tokens, batch_size, seed: as for `measure_acceptance`.
        note: told a line per point.

    Returns:
        The record: device, versions, command, `configurations[point][set]` with tau, hit_rate, rounds, tokens and more,
        `configurations[point]["mean"]`, and `points[point]`, what each was measured with.

    Raises:
        ValueError: points of one name, a set named "mean", or an empty set.
    """
    names = [point.name for point in points]
    if len(set(names)) < len(names) or "mean" in sets or not sets or not all(sets.values()):
        raise ValueError(
            f"need distinct points and non-empty sets, got {names}, { {k: len(v) for k, v in sets.items()} }"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    record = json.loads(path.read_text()) if path.exists() else {"configurations": {}, "points": {}}
    record |= environment(model)
    models: dict[tuple, LanguageModel] = {}
    for point in points:
        at_point = _model_at(model, drafting(point), models)
        found = _measure(at_point, sets, max_new_tokens, point.temperature, seed, batch_size)
        record["configurations"][point.name] = found
        record["points"][point.name] = {
            **asdict(point),
            "outcome_rule": at_point.drafter.drafting.outcome_rule,
            "decision_temperature": at_point.drafter.drafting.decision_temperature,
            "num_drafts": at_point.drafter.num_drafts,
            "max_new_tokens": max_new_tokens,
            "seed": seed,
            "prompts": {name: len(prompts) for name, prompts in sets.items()},
        }
        _write(path, record)
        note(f"{point.name}: " + ", ".join(f"{name} {_tau(value):.2f}" for name, value in found.items()))
    return record


def _model_at(model: LanguageModel, drafter: JetSpecPP, models: dict[tuple, LanguageModel]) -> LanguageModel:
    key = (drafter.drafting, drafter.num_drafts)
    if key in models:
        models[key].programs.set_draft_leaves(drafter.place(model.device))
    else:
        models[key] = model.with_drafter(drafter)
    return models[key]


def _measure(model: LanguageModel, sets, max_new_tokens: int, temperature: float, seed: int, batch_size: int) -> dict:
    prompts = [prompt for group in sets.values() for prompt in group]
    # Numbered within its set: a set's numbers do not depend on the sets it is measured with.
    seeds = [seed + index for group in sets.values() for index in range(len(group))]
    answers = answer_prompts(
        model, prompts, seeds=seeds, max_new_tokens=max_new_tokens, temperature=temperature, batch_size=batch_size
    )
    found, first = {}, 0
    for name, group in sets.items():
        found[name] = _as_json(Acceptance.of_answers(answers[first : first + len(group)]))
        first += len(group)
    return found | {"mean": float(np.mean([numbers["tau"] for numbers in found.values()]))}


def _as_json(acceptance: Acceptance) -> dict[str, Any]:
    if acceptance.tau is None:
        raise ValueError(f"{acceptance.num_requests} answers without a single round: every text ended in prefill")
    return {
        "tau": acceptance.tau,
        "hit_rate": acceptance.hit_rate,
        "rounds": acceptance.num_rounds,
        "tokens": acceptance.num_committed,
        "expected_hit_rate": acceptance.expected_hit_rate,
        "tau_on_hit": acceptance.tau_on_hit,
        "tau_on_miss": acceptance.tau_on_miss,
        "loops": acceptance.num_loops,
        "tau_without_loops": acceptance.tau_without_loops,
        "acceptance_at": acceptance.acceptance_at,
    }


def _tau(value: float | dict[str, Any]) -> float:
    return value["tau"] if isinstance(value, dict) else value


def _write(path: Path, record: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}-partial")
    partial.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    partial.replace(path)
