"""Public DFlash and JetSpec drafts as drafter folders.

Both publish the same network (handbook 1.3): a Qwen3 style `config.json` with a `dflash_config`, tensors named as in
`draft_layouts.py`, mask token inputs, rows that predict their own position; JetSpec's attention is causal. Their
`target_layer_ids` count decoder layers from 0 and mean the residual stream after the layer (Hugging Face
`hidden_states[id + 1]`), which is what `TargetConfig.taps` are. Nothing is guessed: whatever is missing, unknown or
contradictory is refused by name.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jetspec_jax.checkpoints.draft_layouts import draft_rows
from jetspec_jax.checkpoints.drafter_files import save_drafter
from jetspec_jax.checkpoints.hf_config import read_hf_config, target_config_from_hf
from jetspec_jax.checkpoints.loading import load_module
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.checkpoints.resolve import Checkpoint
from jetspec_jax.checkpoints.safetensors import SafetensorsReader, open_safetensors
from jetspec_jax.config import DraftConfig, TargetConfig
from jetspec_jax.models.draft import Draft

ARCHITECTURE = "DFlashDraftModel"

# Settings of the draft, in `dflash_config` or beside it.
MASK, LAYERS, BLOCK = "mask_token_id", "target_layer_ids", "block_size"
CAUSAL = ("causal_head", "is_causal", "causal")
# Values that change nothing; any other value means a network that this one is not.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "draft_shift": (False,),
    "fc_layernorm": (False,),
    "final_logit_softcapping": (0, 0.0),
    "input_embedding_scale": (1, 1.0),
    "output_multiplier": (1, 1.0),
    "sample_from_anchor": (False,),
    "use_qk_norm": (True,),
}
# Stated for people or for checks.
CHECKED = ("num_target_layers", "target_hidden_size", "mask_token")

# Copies of the target's frozen embedding and head that some checkpoints carry; never loaded.
FROZEN_COPIES = ("embed_tokens.weight", "model.embed_tokens.weight", "lm_head.weight")


def target_layer_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The taps that a public draft reads.

    Raises:
        ValueError: the config does not state them as a list of numbers.
    """
    layers = _required(config, LAYERS)
    if not isinstance(layers, list) or not layers or not all(type(layer) is int for layer in layers):
        raise ValueError(f"{LAYERS}={layers!r} must be a list of layer numbers")
    return tuple(layers)


def draft_config_from_public(config: Mapping[str, Any], target: TargetConfig) -> DraftConfig:
    """The config of a public draft.

    Args:
        config: contents of its `config.json`.
        target: the target it drafts for, with the draft's layers as taps.

    Raises:
        ValueError: another architecture, a missing or unknown setting, or a target that it was not trained for.
    """
    if (found := config.get("architectures")) != [ARCHITECTURE]:
        raise ValueError(f"architectures={found}, expected [{ARCHITECTURE!r}] (DFlash and JetSpec)")
    if config.get("model_type") != "qwen3":
        raise ValueError(f"model_type={config.get('model_type')!r}, expected 'qwen3'")
    _refuse_unknown(config)
    layers = target_layer_ids(config)
    # Its layers are Qwen3 layers: sizes and RoPE are read as for a target.
    network = target_config_from_hf(config, taps=(0,))
    if "sliding_attention" in network.layer_types:
        raise ValueError("drafts with sliding_attention layers are not supported")
    draft = DraftConfig(
        shape=network.shape,
        num_layers=network.num_layers,
        num_taps=len(layers),
        rope=network.rope_of(0),
        block_rows=int(_required(config, BLOCK)),
        causal=_is_causal(config),
        shift=False,
        inputs="mask",
        mask_token_id=int(_required(config, MASK)),
    )
    if problems := _misfits(config, draft, network.vocab_size, layers, target):
        raise ValueError(f"the draft does not fit the target: {'; '.join(problems)}")
    return draft


def convert_draft(
    source: Checkpoint,
    out: Path,
    target: TargetConfig,
    *,
    target_name: str,
    storage: str = "bfloat16",
    max_shard_mb: int = 4000,
) -> DraftConfig:
    """Writes a drafter folder with the weights of a public draft.

    Args:
        source: the draft, as `resolve` found it.
        out: folder to write.
        target, target_name: what it drafts for.
        storage, max_shard_mb: as for `save_drafter`.

    Raises:
        ValueError: as `draft_config_from_public`.
        CheckpointError: damaged files; missing, misshaped or unexpected tensors, all of them listed.
    """
    if source.kind != "safetensors":
        raise ValueError(f"{source.path}: a draft must be a folder with config.json and safetensors")
    try:
        config = draft_config_from_public(read_hf_config(source.path), target)
    except CheckpointError:
        raise
    except ValueError as error:
        raise ValueError(f"{source.path}: {error}") from None
    reader = _without_copies(open_safetensors(source.path), target)
    abstract = nnx.eval_shape(lambda: Draft(config, dtype=jnp.float32, rngs=nnx.Rngs(0)))
    draft = load_module(abstract, draft_rows(config), reader)
    save_drafter(
        out,
        draft,
        None,
        None,
        target=target,
        target_name=target_name,
        storage=storage,
        max_shard_mb=max_shard_mb,
        training={"converted_from": source.name},
    )
    return config


def _stated(config: Mapping[str, Any], name: str) -> Any:
    """A setting of the draft, None if it is not stated; two different statements are refused."""
    inner, outer = (config.get("dflash_config") or {}).get(name), config.get(name)
    if None not in (inner, outer) and inner != outer:
        raise ValueError(f"config.json states {name} twice: {outer} and, in dflash_config, {inner}")
    return outer if inner is None else inner


def _required(config: Mapping[str, Any], name: str) -> Any:
    if (value := _stated(config, name)) is None:
        raise ValueError(f"config.json has no {name!r}, neither in dflash_config nor beside it")
    return value


def _refuse_unknown(config: Mapping[str, Any]) -> None:
    known = {MASK, LAYERS, BLOCK, *CAUSAL, *NEUTRAL, *CHECKED}
    problems = [f"dflash_config.{name} is not supported" for name in config.get("dflash_config") or {}
                if name not in known]  # fmt: skip
    for name, values in NEUTRAL.items():
        if (value := _stated(config, name)) not in (None, *values):
            problems.append(f"{name}={value} is not supported")
    if problems:
        raise ValueError("; ".join(problems))


def _is_causal(config: Mapping[str, Any]) -> bool:
    """JetSpec says so; a config that says nothing is DFlash's."""
    stated = {name: bool(value) for name in CAUSAL if (value := _stated(config, name)) is not None}
    if len(set(stated.values())) > 1:
        raise ValueError(f"config.json contradicts itself: {stated}")
    return any(stated.values())


def _misfits(
    config: Mapping[str, Any], draft: DraftConfig, vocab_size: int, layers: tuple[int, ...], target: TargetConfig
) -> list[str]:
    width, problems = target.shape.hidden_size, []
    if layers != target.taps:
        problems.append(f"it reads the layers {layers}, the target gives {target.taps}")
    if layers[-1] == target.num_layers - 1:
        # Public code reads that one after the final norm, unlike all others.
        problems.append(f"it reads the last layer, {layers[-1]}, whose state public code normalises")
    if draft.shape.hidden_size != width:
        problems.append(f"it has width {draft.shape.hidden_size}, the target {width}")
    for name, its in (("target_hidden_size", width), ("num_target_layers", target.num_layers)):
        if (stated := _stated(config, name)) not in (None, its):
            problems.append(f"{name}={stated}, the target has {its}")
    if vocab_size != target.vocab_size:
        problems.append(f"vocab_size={vocab_size}, the target has {target.vocab_size}")
    if not 0 <= draft.mask_token_id < target.vocab_size:
        problems.append(f"mask_token_id={draft.mask_token_id}, the target has {target.vocab_size} ids")
    return problems


def _without_copies(reader: SafetensorsReader, target: TargetConfig) -> SafetensorsReader:
    """The draft's own tensors; a copy of the target's embedding or head must at least have its shape."""
    expected = (target.vocab_size, target.shape.hidden_size)
    copies = [key for key in FROZEN_COPIES if key in reader.tensors]
    if wrong := [f"{key} {list(reader.shape(key))}" for key in copies if reader.shape(key) != expected]:
        raise CheckpointError(f"{reader.path}: {', '.join(wrong)}: expected {list(expected)}, the target's")
    return replace(reader, tensors={key: value for key, value in reader.tensors.items() if key not in copies})
