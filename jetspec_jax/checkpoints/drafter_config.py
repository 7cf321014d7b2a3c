"""`config.json` of the parts of a drafter folder: network, storage, and the target they belong to."""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from jetspec_jax.checkpoints.config_json import from_json, to_json
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.config import AdapterConfig, DraftConfig, TargetConfig

# Raise it whenever files of the old form could be misread.
FORMAT_VERSION = 1

Storage = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """The target that a drafter was trained for.

    Attributes:
        name: for people; not compared.
        model_type .. taps: as in `TargetConfig` and its shape. A target of the same shape (a base model, a fine-tune)
            passes: its text is right with this drafter, only τ is lower.
    """

    name: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    vocab_size: int
    taps: tuple[int, ...]

    @classmethod
    def of(cls, target: TargetConfig, name: str) -> "TargetFacts":
        """The facts of a target."""
        shape_names = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
        return cls(
            name=name,
            **{name: getattr(target.shape, name) for name in shape_names},
            **{name: getattr(target, name) for name in ("model_type", "num_layers", "vocab_size", "taps")},
        )

    def differences(self, target: TargetConfig) -> list[str]:
        """What is different about a target; empty for the one the drafter belongs to."""
        given = TargetFacts.of(target, self.name)
        pairs = [(item.name, getattr(self, item.name), getattr(given, item.name)) for item in fields(self)]
        return [f"{name}={mine}, the target has {its}" for name, mine, its in pairs if mine != its]


@dataclass(frozen=True, kw_only=True)
class DraftPart:
    """Contents of `draft/config.json`.

    Attributes:
        config: the network.
        target: what it was trained for.
        storage: how matrices are stored; vectors are floats in any case.
        has_adapter: whether an adapter belongs to it: a copy that lost its adapter is no draft-only drafter.
        training: free notes on where the weights come from.
    """

    config: DraftConfig
    target: TargetFacts
    storage: Storage
    has_adapter: bool
    training: dict[str, Any] = field(default_factory=dict)
    architecture: Literal["JetSpecDraft"] = "JetSpecDraft"
    format_version: int = FORMAT_VERSION

    def __post_init__(self):
        width, taps = self.target.hidden_size, self.target.taps
        if (self.config.shape.hidden_size, self.config.num_taps) != (width, len(taps)):
            raise ValueError(
                f"the draft reads {self.config.num_taps} taps of width {self.config.shape.hidden_size}, "
                f"the target gives {len(taps)} of width {width}"
            )
        if (self.config.mask_token_id or 0) >= self.target.vocab_size:
            raise ValueError(f"mask_token_id={self.config.mask_token_id}, the target has {self.target.vocab_size} ids")


@dataclass(frozen=True, kw_only=True)
class AdapterPart:
    """Contents of `adapter/config.json`; attributes as in `DraftPart`."""

    config: AdapterConfig
    target: TargetFacts
    storage: Storage
    architecture: Literal["JetSpecAdapter"] = "JetSpecAdapter"
    format_version: int = FORMAT_VERSION

    def __post_init__(self):
        width, taps = self.target.hidden_size, self.target.taps
        if (self.config.shape.hidden_size, len(self.config.layers_per_module)) != (width, len(taps)):
            raise ValueError(
                f"the adapter predicts {len(self.config.layers_per_module)} taps of width "
                f"{self.config.shape.hidden_size}, the target gives {len(taps)} of width {width}"
            )


def write_part(folder: Path, part: DraftPart | AdapterPart) -> None:
    """Writes the `config.json` of a part."""
    (folder / "config.json").write_text(json.dumps(to_json(part), indent=2, allow_nan=False) + "\n")


def read_part[PartT](folder: Path, cls: type[PartT]) -> PartT:
    """Reads the `config.json` of a part.

    Raises:
        CheckpointError: not such a file, another format version, missing, unknown or bad values; names them.
    """
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    wanted = next(item.default for item in fields(cls) if item.name == "architecture")
    if not isinstance(content, dict) or content.get("architecture") != wanted:
        found = content.get("architecture") if isinstance(content, dict) else content
        raise CheckpointError(f"{path}: architecture {found!r}, expected {wanted!r}")
    if (version := content.get("format_version")) != FORMAT_VERSION:
        raise CheckpointError(f"{path}: format_version={version!r} is not supported ({FORMAT_VERSION})")
    try:
        return from_json(cls, content, "config")
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
