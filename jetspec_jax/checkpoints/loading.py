"""Fills modules from checkpoints: abstract module, weight table, tensors, device.

Strict in both directions (bug case C25): every missing, misshaped or unexpected tensor is listed in one error, before
any large read. No parameter ever keeps an initial value.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jetspec_jax.checkpoints.conversion import converted
from jetspec_jax.checkpoints.hf_config import read_hf_config, target_config_from_hf
from jetspec_jax.checkpoints.layouts import WeightRow, find_problems, find_unequal, target_duplicates, target_rows
from jetspec_jax.checkpoints.reader import CheckpointError, TensorReader, map_ahead
from jetspec_jax.checkpoints.resolve import Checkpoint
from jetspec_jax.checkpoints.safetensors import open_safetensors
from jetspec_jax.models.target import Target

Progress = Callable[[int, int], Any]
Device = jax.Device | jax.sharding.Sharding


def load_target(
    checkpoint: Checkpoint,
    *,
    dtype: DTypeLike,
    device: Device | None = None,
    taps: Sequence[int] | None = None,
    progress: Progress | None = None,
    cache_dir: Path | None = None,
) -> Target:
    """Loads a target model.

    Args:
        checkpoint: what `resolve` found; a GGUF file is converted into `cache_dir` first.
        dtype: dtype of all parameters.
        device: where they go; None is the default device.
        taps: layers handed to the draft (0-based); None takes `default_taps`.
        progress: called with (bytes read, bytes in all) after each tensor.
        cache_dir: see `conversion.converted`.

    Raises:
        CheckpointError: damaged files; missing, misshaped or unexpected tensors, all of them listed.
        ValueError: unsupported config, taps out of range.
    """
    folder = converted(checkpoint.path, cache_dir) if checkpoint.kind == "gguf" else checkpoint.path
    config = target_config_from_hf(read_hf_config(folder), taps=taps)
    reader = open_safetensors(folder)
    abstract = nnx.eval_shape(lambda: Target(config, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0)))
    duplicates = target_duplicates(config)
    return load_module(abstract, target_rows(config), reader, duplicates=duplicates, device=device, progress=progress)


def load_module[ModuleT: nnx.Module](
    abstract: ModuleT,
    rows: Sequence[WeightRow],
    reader: TensorReader,
    *,
    duplicates: Mapping[str, str] | None = None,
    device: Device | None = None,
    progress: Progress | None = None,
) -> ModuleT:
    """Fills every parameter of a module from the tensors its weight table names.

    Args:
        abstract: module from `nnx.eval_shape`; its shapes and dtypes are what is loaded.
        rows: weight table that covers the module exactly.
        reader: open checkpoint.
        duplicates: tensors that may be in the file besides, and what each must equal.
        device, progress: as in `load_target`.

    Raises:
        CheckpointError: the checkpoint does not fit; lists all problems, nothing has been loaded.
    """
    duplicates = duplicates or {}
    graphdef, state = nnx.split(abstract)
    variables = {".".join(map(str, path)): (path, variable) for path, variable in nnx.to_flat_state(state)}
    _check_table(rows, {name: variable.shape for name, (_, variable) in variables.items()})
    if problems := find_problems(rows, reader, duplicates) or find_unequal(reader, duplicates):
        raise CheckpointError("\n  ".join([f"{reader.path}: the weights do not fit the model:", *problems]))
    num_bytes = [sum(reader.num_bytes(source.key) for source in row.sources) for row in rows]
    done, filled = 0, {}

    def read(row: WeightRow) -> np.ndarray:
        return _read_row(row, reader, np.dtype(variables[row.parameter][1].dtype))

    for row, row_bytes, host in zip(rows, num_bytes, map_ahead(read, rows), strict=True):
        path, variable = variables[row.parameter]
        filled[path] = variable.replace(jax.device_put(host, device))
        done += row_bytes
        if progress is not None:
            progress(done, sum(num_bytes))
    return nnx.merge(graphdef, nnx.from_flat_state(filled))


def _check_table(rows: Sequence[WeightRow], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A table that does not cover its module exactly is a mistake in the table, not in the checkpoint."""
    table = {row.parameter: row.shape for row in rows}
    if table != shapes or len(table) != len(rows):
        differing = sorted(name for name in table.keys() | shapes.keys() if table.get(name) != shapes.get(name))
        lines = [f"{name}: table {table.get(name)}, module {shapes.get(name)}" for name in differing]
        raise ValueError("\n  ".join(["the weight table does not cover the module:", *lines]))


def _empty_aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Fresh memory at a multiple of 64 bytes, which `device_put` on CPU adopts instead of copying."""
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(num_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + num_bytes].view(dtype).reshape(shape)


def _read_row(row: WeightRow, reader: TensorReader, dtype: np.dtype) -> np.ndarray:
    """Sources joined on axis 0 and cast, in memory that nothing else refers to."""
    out, start = _empty_aligned(row.shape, dtype), 0
    for source in row.sources:
        part, end = reader.read(source.key), start + source.shape[0]
        with np.errstate(over="ignore"):
            out[start:end] = part
        if dtype == np.float16 and not np.isfinite(out[start:end]).all():
            raise CheckpointError(f"{reader.path}: {source.key} ({part.dtype}) does not fit into float16")
        start = end
    return out
