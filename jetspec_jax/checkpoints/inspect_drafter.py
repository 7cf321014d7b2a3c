"""Describes a drafter folder and everything that would make loading refuse it, without loading it and without raising.

Whether it fits a target is not asked: it says which target it was trained for.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from jetspec_jax.checkpoints.calibration_file import load_calibrations
from jetspec_jax.checkpoints.draft_layouts import adapter_rows, draft_rows
from jetspec_jax.checkpoints.drafter_config import AdapterPart, DraftPart
from jetspec_jax.checkpoints.drafter_files import ADAPTER, CALIBRATION, DRAFT, open_part, read_parts
from jetspec_jax.checkpoints.inspect import Attempts, InspectReport, TensorInfo, tensors_of
from jetspec_jax.checkpoints.layouts import find_problems
from jetspec_jax.checkpoints.resolve import resolve_drafter


def is_drafter_folder(source: str | Path) -> bool:
    """Whether a folder is, or was meant to be, that of a drafter and not of a model."""
    folder = Path(source).expanduser()
    return (folder / DRAFT).is_dir() and not (folder / "config.json").exists()


def inspect_drafter(source: str | Path) -> InspectReport:
    """Inspects a drafter folder; reads headers only."""
    attempts = Attempts()
    folder = attempts.run(resolve_drafter, source)
    parts = attempts.run(read_parts, folder) if folder is not None else None
    if parts is None:
        return InspectReport(source=str(source), path=folder, kind="drafter", problems=tuple(attempts.problems))
    draft, adapter = parts
    tensors = _inspect_part(attempts, folder / DRAFT, draft_rows(draft.config))
    if adapter is not None:
        tensors += _inspect_part(attempts, folder / ADAPTER, adapter_rows(adapter.config))
    entries = attempts.run(load_calibrations, folder / CALIBRATION) if (folder / CALIBRATION).is_file() else []
    return InspectReport(
        source=str(source),
        kind="drafter",
        path=folder,
        architecture=draft.architecture,
        details=_details(draft, adapter, entries or []),
        tensors=tensors,
        problems=tuple(attempts.problems),
    )


def _inspect_part(attempts: Attempts, folder: Path, rows: Any) -> tuple[TensorInfo, ...]:
    reader = attempts.run(open_part, folder)
    if reader is None:
        return ()
    attempts.problems += [f"{folder.name}: {problem}" for problem in find_problems(rows, reader, {})]
    return tuple(replace(tensor, key=f"{folder.name}/{tensor.key}") for tensor in tensors_of(reader))


def _details(draft: DraftPart, adapter: AdapterPart | None, entries: list) -> tuple[tuple[str, str], ...]:
    config, target = draft.config, draft.target
    attention = "causal" if config.causal else "bidirectional"
    alignment = "rows predict the next position" if config.shift else "rows predict their own position"
    inputs = "noise" if config.inputs == "noise" else f"mask token {config.mask_token_id}"
    modules = "none" if adapter is None else f"layers {', '.join(map(str, adapter.config.layers_per_module))}"
    fitted = [f"T={entry.temperature:g} {entry.refine} B={entry.num_outcomes}" for entry in entries]
    return (
        ("target", f"{target.name}: {target.model_type}, {target.num_layers} layers, width {target.hidden_size}"),
        ("vocabulary", str(target.vocab_size)),
        ("taps", ", ".join(map(str, target.taps))),
        ("draft", f"{config.num_layers} {attention} layers, MLP {config.shape.intermediate_size}"),
        ("blocks", f"{config.block_rows} rows of {inputs}, {alignment}"),
        ("adapter", modules),
        ("calibration", "; ".join(fitted) or "none"),
        ("storage", draft.storage),
        ("training", ", ".join(f"{key}: {value}" for key, value in draft.training.items()) or "not recorded"),
    )
