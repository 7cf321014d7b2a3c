"""Describes a checkpoint and everything that would make loading refuse it, without loading it and without raising."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jetspec_jax.checkpoints.gguf import open_gguf
from jetspec_jax.checkpoints.gguf_config import hf_config_from_gguf
from jetspec_jax.checkpoints.hf_config import read_hf_config, target_config_from_hf
from jetspec_jax.checkpoints.layouts import find_problems, find_unequal, target_duplicates, target_rows
from jetspec_jax.checkpoints.reader import TensorReader
from jetspec_jax.checkpoints.resolve import Checkpoint, resolve
from jetspec_jax.checkpoints.safetensors import open_safetensors
from jetspec_jax.config import TargetConfig


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the file, under its Hugging Face name; `num_bytes` as stored."""

    key: str
    shape: tuple[int, ...]
    stored_type: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class InspectReport:
    """What was found; fields that could not be read are None or empty, and `problems` says why.

    Attributes:
        source: what was asked for.
        kind, path: format and place, see `Checkpoint`.
        architecture: as the checkpoint names itself.
        config: the config a target would be built with.
        details: what else is to be said, as pairs of a heading and a line.
        tensors: every tensor of the file.
        problems: everything that loading would refuse; empty for a sound checkpoint.
    """

    source: str
    kind: str | None = None
    path: Path | None = None
    architecture: str | None = None
    config: TargetConfig | None = None
    details: tuple[tuple[str, str], ...] = ()
    tensors: tuple[TensorInfo, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors in the file."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.num_bytes for tensor in self.tensors)


class Attempts:
    """Runs steps and keeps what went wrong."""

    def __init__(self):
        self.problems: list[str] = []

    def run(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Result of a step, None if it failed."""
        try:
            return step(*args, **kwargs)
        except ValueError as error:
            self.problems.append(str(error))
        except Exception as error:  # a config can be wrong in any way; a report must still come
            self.problems.append(f"{type(error).__name__}: {error}")
        return None


def inspect_checkpoint(source: str | Path, *, taps: Sequence[int] | None = None) -> InspectReport:
    """Inspects a model named as for `resolve`; reads headers only, unless a repeated tensor must be compared.

    Args:
        source: folder, `.gguf` file, package or hub id.
        taps: tapped layers to check against the config.
    """
    attempts = Attempts()
    checkpoint = attempts.run(resolve, source)
    if checkpoint is None:
        return InspectReport(source=str(source), problems=tuple(attempts.problems))
    reader = attempts.run(open_gguf if checkpoint.kind == "gguf" else open_safetensors, checkpoint.path)
    hf_config = attempts.run(_hf_config, checkpoint, reader) or {}
    config = attempts.run(target_config_from_hf, hf_config, taps=taps) if hf_config else None
    if config is not None and reader is not None:
        rows, duplicates = target_rows(config), target_duplicates(config)
        found = attempts.run(find_problems, rows, reader, duplicates) or ()
        attempts.problems += found or attempts.run(find_unequal, reader, duplicates) or ()
    return InspectReport(
        source=str(source),
        kind=checkpoint.kind,
        path=checkpoint.path,
        architecture=str((hf_config.get("architectures") or [hf_config.get("model_type")])[0]) if hf_config else None,
        config=config,
        tensors=tensors_of(reader) if reader is not None else (),
        problems=tuple(attempts.problems),
    )


def _hf_config(checkpoint: Checkpoint, reader: Any) -> dict[str, Any] | None:
    if checkpoint.kind == "safetensors":
        return read_hf_config(checkpoint.path)
    return hf_config_from_gguf(reader) if reader is not None else None


def tensors_of(reader: TensorReader) -> tuple[TensorInfo, ...]:
    """Every tensor of a file."""
    keys = reader.keys()
    return tuple(TensorInfo(key, reader.shape(key), reader.stored_type(key), reader.num_bytes(key)) for key in keys)


def render_report(report: InspectReport) -> Any:
    """The report as a rich renderable: summary, tensors (layers folded), problems."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    summary = Table.grid(padding=(0, 2))
    for name, value in _summary(report):
        summary.add_row(Text(name, style="bold"), Text(value))
    tensors = Table("tensor", "shape", "type", "count", title=f"{len(report.tensors)} tensors", title_justify="left")
    for (key, shape, stored_type), count in _folded(report.tensors).items():
        tensors.add_row(Text(key), Text(" x ".join(map(str, shape))), stored_type, str(count))
    verdict = Text("\n".join(report.problems) or "loads: no problems found")
    title, style = (f"{len(report.problems)} problems", "red") if report.problems else ("sound", "green")
    return Group(summary, *([tensors] if report.tensors else []), Panel(verdict, title=title, border_style=style))


def _folded(tensors: Sequence[TensorInfo]) -> Counter[tuple[str, tuple[int, ...], str]]:
    """Tensors that differ in the layer number only, counted: `model.layers.*.mlp.up_proj.weight` x 30."""
    return Counter((re.sub(r"\.\d+\.", ".*.", t.key), t.shape, t.stored_type) for t in tensors)


def _summary(report: InspectReport) -> list[tuple[str, str]]:
    lines = [
        ("source", report.source),
        ("found", f"{report.path} ({report.kind})" if report.path else "nothing"),
        ("architecture", report.architecture or "unknown"),
        ("parameters", f"{report.num_parameters / 1e6:,.1f} M in {report.num_bytes / 1e6:,.1f} MB"),
    ]
    if (config := report.config) is None:
        return [*lines, *report.details]
    shape = config.shape
    heads = f"{shape.num_heads} query, {shape.num_kv_heads} key/value, size {shape.head_dim}"
    head = "tied to the embedding" if config.tie_word_embeddings else "separate"
    ropes = "; ".join(f"{kind}: {rope.rope_type}, base {rope.theta:g}" for kind, rope in config.ropes)
    return [
        *lines,
        ("layers", f"{config.num_layers}, width {shape.hidden_size}, MLP {shape.intermediate_size}"),
        ("heads", heads),
        ("vocabulary", f"{config.vocab_size}, head {head}"),
        ("RoPE", ropes),
        ("context", f"{config.max_position_embeddings} tokens"),
        ("end of text", ", ".join(map(str, config.eos_token_ids)) or "none"),
        ("taps", ", ".join(map(str, config.taps))),
    ]
