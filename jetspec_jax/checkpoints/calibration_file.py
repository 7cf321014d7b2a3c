"""`calibration.json` of a drafter folder: fitted outcome scores, one entry per temperature and configuration.

Written by `train/calibrate.py` from held-out rounds (handbook 7.6); read when a trained drafter is loaded. A wrong
number here costs cache misses silently, so every value is checked, both when it is written and when it is read.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.decoding.outcomes import Calibration
from jetspec_jax.drafting_config import RefineConfig

FORMAT_VERSION = 1
NUM_COEFFICIENTS = 6


@dataclass(frozen=True, kw_only=True)
class CalibrationEntry:
    """A calibration with what it was fitted for.

    Attributes:
        temperature: of the sampled rounds; 0 is greedy.
        refine: refinement of their blocks, as `RefineConfig.name` (`J1-R1`).
        num_outcomes: blocks prepared a round.
        coefficients, anchor_temperature, conformal_threshold: see `Calibration`.
        decision_temperature: see `DraftingConfig`; the evidence was scaled by it.
        num_rounds: held-out rounds behind the fit.
        coverage: share of rounds that `conformal_threshold` promises to reach; None where nothing is pruned.
    """

    temperature: float
    refine: str
    num_outcomes: int
    coefficients: tuple[float, ...]
    anchor_temperature: float
    conformal_threshold: float
    decision_temperature: float
    num_rounds: int
    coverage: float | None = None

    def __post_init__(self):
        RefineConfig.parse(self.refine)
        if len(self.coefficients) != NUM_COEFFICIENTS or not all(map(math.isfinite, self.coefficients)):
            raise ValueError(f"need {NUM_COEFFICIENTS} finite coefficients, got {self.coefficients}")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature} must be finite and not negative")
        for name in ("anchor_temperature", "decision_temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be finite and positive")
        if not 0 <= self.conformal_threshold <= 1:
            raise ValueError(f"conformal_threshold={self.conformal_threshold} must be in [0, 1]")
        if self.num_outcomes < 1 or self.num_rounds < 1:
            raise ValueError(f"num_outcomes={self.num_outcomes} and num_rounds={self.num_rounds} must be at least 1")
        if self.coverage is not None and not 0 < self.coverage <= 1:
            raise ValueError(f"coverage={self.coverage} must be in (0, 1]")

    @property
    def key(self) -> tuple[float, str, int]:
        """What the entry was fitted for; unique in a file."""
        return self.temperature, self.refine, self.num_outcomes

    def to_calibration(self) -> Calibration:
        """The arrays that `JetSpecPP` takes; use them with this entry's `decision_temperature`."""
        return Calibration(
            coefficients=jnp.asarray(self.coefficients, jnp.float32),
            anchor_temperature=jnp.asarray(self.anchor_temperature, jnp.float32),
            conformal_threshold=jnp.asarray(self.conformal_threshold, jnp.float32),
        )


def save_calibrations(path: Path, entries: Sequence[CalibrationEntry]) -> None:
    """Writes a calibration file in one step: a reader sees the old file or the new one.

    Raises:
        ValueError: two entries for the same temperature, refinement and number of outcomes.
    """
    _check_unique([entry.key for entry in entries])
    content = {"format_version": FORMAT_VERSION, "entries": [asdict(entry) for entry in entries]}
    partial = path.with_name(f".{path.name}-partial")
    partial.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    partial.replace(path)


def load_calibrations(path: Path) -> list[CalibrationEntry]:
    """Reads a calibration file.

    Raises:
        CheckpointError: not such a file, another format version, or a bad entry; the message names it.
    """
    try:
        content = json.loads(path.read_text())
        version, listed = content["format_version"], content["entries"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a calibration file: {error!r}") from None
    if version != FORMAT_VERSION or not isinstance(listed, list):
        raise CheckpointError(f"{path}: format_version={version!r} is not supported ({FORMAT_VERSION})")
    entries = [_parse(path, index, values) for index, values in enumerate(listed)]
    try:
        _check_unique([entry.key for entry in entries])
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return entries


def nearest(
    entries: Sequence[CalibrationEntry], *, temperature: float, refine: str, num_outcomes: int
) -> CalibrationEntry | None:
    """The entry fitted under the most similar conditions; None if there is none for this refinement.

    The temperature decides before the number of outcomes. Blocks of another refinement are right for other reasons, and
    a fit to them would mislead.
    """

    def distance(entry: CalibrationEntry) -> tuple[float, int]:
        return abs(entry.temperature - temperature), abs(entry.num_outcomes - num_outcomes)

    return min((entry for entry in entries if entry.refine == refine), key=distance, default=None)


def _check_unique(keys: Sequence[tuple[float, str, int]]) -> None:
    if repeated := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"several calibrations for (temperature, refine, num_outcomes) = {repeated}")


def _parse(path: Path, index: int, values: Any) -> CalibrationEntry:
    names = {field.name for field in fields(CalibrationEntry)}
    if not isinstance(values, dict) or set(values) != names:
        found = sorted(values) if isinstance(values, dict) else values
        raise CheckpointError(f"{path}: entry {index}: expected the keys {sorted(names)}, found {found}")
    try:
        return CalibrationEntry(
            temperature=_number(values, "temperature"),
            refine=str(values["refine"]),
            num_outcomes=_count(values, "num_outcomes"),
            coefficients=tuple(_number({"coefficients": value}, "coefficients") for value in values["coefficients"]),
            anchor_temperature=_number(values, "anchor_temperature"),
            conformal_threshold=_number(values, "conformal_threshold"),
            decision_temperature=_number(values, "decision_temperature"),
            num_rounds=_count(values, "num_rounds"),
            coverage=None if values["coverage"] is None else _number(values, "coverage"),
        )
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: entry {index}: {error}") from None


def _number(values: dict[str, Any], name: str) -> float:
    if type(values[name]) not in (int, float):
        raise ValueError(f"{name}={values[name]!r} is not a number")
    return float(values[name])


def _count(values: dict[str, Any], name: str) -> int:
    if type(values[name]) is not int:
        raise ValueError(f"{name}={values[name]!r} is not a whole number")
    return values[name]
