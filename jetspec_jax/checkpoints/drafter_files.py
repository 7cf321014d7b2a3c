"""Drafter folders: a trained draft, its adapter and its calibration, saved and loaded.

    FOLDER/draft/config.json, model*.safetensors
    FOLDER/adapter/config.json, model*.safetensors   (without it: a draft for the critical path)
    FOLDER/calibration.json                          (optional)

A folder is written beside its place and renamed, so it is whole or absent. Loading is strict in both directions (bug
case C25) and refuses any target but the one the drafter was trained for.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jetspec_jax.checkpoints.calibration_file import (
    CalibrationEntry,
    load_calibrations,
    nearest,
    save_calibrations,
)
from jetspec_jax.checkpoints.draft_layouts import adapter_rows, draft_rows
from jetspec_jax.checkpoints.drafter_config import AdapterPart, DraftPart, TargetFacts, read_part, write_part
from jetspec_jax.checkpoints.layouts import WeightRow
from jetspec_jax.checkpoints.loading import load_module
from jetspec_jax.checkpoints.quantized import SCALE_SUFFIX, DequantizingReader, quantize_rows
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.checkpoints.resolve import resolve_drafter
from jetspec_jax.checkpoints.safetensors import open_safetensors, write_shards
from jetspec_jax.config import TargetConfig
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS, JetSpecPP
from jetspec_jax.drafting_config import AT_CRITICAL_PATH, DraftingConfig
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft

DRAFT, ADAPTER, CALIBRATION = "draft", "adapter", "calibration.json"
STORAGES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "int8": np.dtype(np.float32)}


def save_drafter(
    folder: str | Path,
    draft: Draft,
    adapter: Adapter | None,
    calibration: Sequence[CalibrationEntry] | None,
    *,
    target: TargetConfig,
    target_name: str,
    storage: str = "bfloat16",
    max_shard_mb: int = 40,
    training: dict[str, Any] | None = None,
) -> None:
    """Writes a drafter folder; an older one in its place is replaced once the new one is whole.

    Args:
        folder: where to; its parent must exist.
        draft, adapter, calibration: what to save; None leaves the last two out.
        target, target_name: what they were trained for.
        storage: `float32`, `bfloat16`, or `int8` (one scale a row; vectors stay float32).
        max_shard_mb: limit of one file, 10^6 bytes.
        training: notes that JSON can hold.

    Raises:
        ValueError: parts that do not belong to the target, weights that are not finite, a tensor larger than a file
            may be, or a folder that holds other files.
    """
    folder = Path(folder).expanduser()
    if storage not in STORAGES:
        raise ValueError(f"storage={storage!r} is not supported ({', '.join(STORAGES)})")
    if folder.exists() and (others := _other_files(folder)):
        raise ValueError(f"{folder} holds {', '.join(others)}, which no drafter folder does; it is not replaced")
    shared = {"target": TargetFacts.of(target, target_name), "storage": storage}
    draft_part = DraftPart(config=draft.config, has_adapter=adapter is not None, training=training or {}, **shared)
    partial = folder.with_name(f".{folder.name}-partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed call
    partial.mkdir()
    try:
        if adapter is not None:
            adapter_part = AdapterPart(config=adapter.config, **shared)
            _write_weights(partial / ADAPTER, adapter, adapter_rows(adapter.config), storage, max_shard_mb)
            write_part(partial / ADAPTER, adapter_part)
        if calibration is not None:
            save_calibrations(partial / CALIBRATION, calibration)
        _write_weights(partial / DRAFT, draft, draft_rows(draft.config), storage, max_shard_mb)
        write_part(partial / DRAFT, draft_part)  # last: without it the folder is none
        _move(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load_drafter(
    source: str | Path,
    target: TargetConfig,
    *,
    dtype: DTypeLike,
    drafting: DraftingConfig | None = None,
    drafts_ahead: bool = True,
    temperature: float = 0.0,
) -> JetSpecPP:
    """Loads a drafter folder onto the default device.

    Args:
        source: a folder or the Hugging Face id of one.
        target: what it shall draft for.
        dtype: of all weights.
        drafting: how it drafts; None takes the defaults of JetSpec++, or one pass if there is no adapter.
        drafts_ahead: whether the defaults foresee outcomes; on one device there is no time to hide that work in.
        temperature: for which a calibration is chosen, the nearest one.

    Raises:
        ValueError: nothing found; it belongs to another target (what differs is named); `drafting` needs an adapter.
        CheckpointError: damaged or incomplete; missing, unexpected and misshaped tensors are all listed.
    """
    folder = resolve_drafter(source)
    draft_part, adapter_part = read_parts(folder)
    if differences := draft_part.target.differences(target):
        hint = f"; load the target with taps={draft_part.target.taps}" if differences[0].startswith("taps=") else ""
        raise ValueError(
            f"{folder}: the drafter was trained for another target ({draft_part.target.name}): "
            f"{'; '.join(differences)}{hint}"
        )
    dtype = jnp.dtype(dtype)
    config = draft_part.config
    draft = nnx.eval_shape(lambda: Draft(config, dtype=dtype, rngs=nnx.Rngs(0)))
    draft = load_module(draft, draft_rows(config), open_part(folder / DRAFT))
    adapter = None
    if adapter_part is not None:
        adapter = nnx.eval_shape(lambda: Adapter.random(adapter_part.config, dtype=dtype, rngs=nnx.Rngs(0)))
        adapter = load_module(adapter, adapter_rows(adapter_part.config), open_part(folder / ADAPTER))
    if drafting is None:
        drafting = PLAIN_PASS if adapter is None else DraftingConfig() if drafts_ahead else AT_CRITICAL_PATH
    entries = load_calibrations(folder / CALIBRATION) if (folder / CALIBRATION).is_file() else []
    fitted_for = {"refine": drafting.refine.name, "num_outcomes": drafting.num_outcomes}
    entry = nearest(entries, temperature=temperature, **fitted_for)
    if entry is None:
        return JetSpecPP(draft, adapter, drafting=drafting)
    if drafting.decision_temperature is None and drafting.outcome_rule in (None, "calibrated"):
        drafting = replace(drafting, decision_temperature=entry.decision_temperature)
    return JetSpecPP(draft, adapter, drafting=drafting, calibration=entry.to_calibration())


def read_parts(folder: Path) -> tuple[DraftPart, AdapterPart | None]:
    """Configs of both parts, checked against each other.

    Raises:
        CheckpointError: a bad config, an adapter that is missing or of another target.
    """
    draft = read_part(folder / DRAFT, DraftPart)
    if draft.has_adapter != (folder / ADAPTER).is_dir():
        state = "is missing" if draft.has_adapter else "does not belong there"
        raise CheckpointError(f"{folder}: the folder {ADAPTER!r} {state}: has_adapter={draft.has_adapter}")
    if not draft.has_adapter:
        return draft, None
    adapter = read_part(folder / ADAPTER, AdapterPart)
    if adapter.target != draft.target:
        raise CheckpointError(f"{folder}: the draft is for {draft.target}, the adapter for {adapter.target}")
    return draft, adapter


def open_part(folder: Path) -> DequantizingReader:
    """Tensors of a part as floats; headers alone are read.

    Raises:
        CheckpointError: a damaged file, or a missing shard.
    """
    return DequantizingReader(open_safetensors(folder))


def _write_weights(folder: Path, module: nnx.Module, rows: Sequence[WeightRow], storage: str, max_shard_mb: int):
    """Weights of a module under the names of its table, apart where the module keeps them together."""
    folder.mkdir()
    variables = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(nnx.state(module))}
    shapes = {name: variable.shape for name, variable in variables.items()}
    if shapes != (table := {row.parameter: row.shape for row in rows}):
        differing = sorted(name for name in shapes.keys() | table.keys() if shapes.get(name) != table.get(name))
        raise ValueError(f"weights that the config does not describe: {', '.join(differing)}")
    tensors: dict[str, np.ndarray] = {}
    for row in rows:
        weight, start = np.asarray(variables[row.parameter][...]), 0
        if not np.isfinite(weight.astype(np.float32)).all():
            raise ValueError(f"{row.parameter} holds values that are not finite")
        for source in row.sources:
            tensors |= _stored(source.key, weight[start : start + source.shape[0]], storage)
            start += source.shape[0]
    specs = {key: (value.dtype, value.shape) for key, value in tensors.items()}
    write_shards(folder, specs, tensors.__getitem__, max_shard_mb * 1_000_000)


def _stored(key: str, weight: np.ndarray, storage: str) -> dict[str, np.ndarray]:
    if storage != "int8" or weight.ndim != 2:
        return {key: weight.astype(STORAGES[storage])}
    integers, scale = quantize_rows(weight.astype(np.float32))
    return {key: integers, key + SCALE_SUFFIX: scale}


def _other_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return ["no files: it is one"]
    return sorted(path.name for path in folder.iterdir() if path.name not in (DRAFT, ADAPTER, CALIBRATION))


def _move(partial: Path, folder: Path) -> None:
    """Renames a whole folder into its place; killed in between, the older one is left as `.NAME-old`."""
    if not folder.exists():
        partial.rename(folder)
        return
    old = folder.with_name(f".{folder.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old)
