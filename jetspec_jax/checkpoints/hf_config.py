"""Reads a Hugging Face `config.json`: the one place that knows its keys, old and new.

Nothing is defaulted silently where the value changes the text: RoPE base, epsilon and sizes must be present, and two
statements of the same thing must agree (bug case C27).
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.config import LayerType, RopeConfig, TargetConfig, TransformerShape, default_taps

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
ROPE_KEYS = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
}
ROPE_KEYS |= {"original_max_position_embeddings", "attention_factor", "truncate", "partial_rotary_factor"}


def _required(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ValueError(f"config.json has no {key!r}")
    return config[key]


def _merged(params: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Adds a value that stands beside the RoPE dictionary; two different statements of it are refused."""
    if value is None:
        return dict(params)
    if params.get(key) not in (None, value):
        raise ValueError(f"config.json states {key} twice: {value} and, inside the RoPE parameters, {params[key]}")
    return {**params, key: value}


def _rope_type_of(params: Mapping[str, Any]) -> Any:
    """The RoPE type, under its new or its old name; unsupported ones are refused by name."""
    rope_type = _merged(params, "rope_type", params.get("type")).get("rope_type") or "default"
    if rope_type not in ROPE_TYPES:
        raise ValueError(f"rope_type {rope_type!r} is not supported ({', '.join(ROPE_TYPES)})")
    return rope_type


def _rope_from_dict(params: Mapping[str, Any], max_position_embeddings: int) -> RopeConfig:
    """One RoPE from the merged view of `rope_parameters` / `rope_theta` + `rope_scaling`."""
    rope_type = _rope_type_of(params)
    if unknown := sorted({key for key, value in params.items() if value is not None} - ROPE_KEYS):
        raise ValueError(f"RoPE parameters {unknown} are not supported")
    if params.get("partial_rotary_factor") not in (None, 1.0):
        raise ValueError(f"partial_rotary_factor={params['partial_rotary_factor']} is not supported")
    fields: dict[str, Any] = {"theta": float(_required(params, "rope_theta")), "rope_type": rope_type}
    if rope_type != "default":
        fields["factor"] = float(_required(params, "factor"))
    if rope_type == "llama3":
        fields |= {k: float(_required(params, k)) for k in ("low_freq_factor", "high_freq_factor")}
        fields["original_max_position_embeddings"] = int(_required(params, "original_max_position_embeddings"))
    if rope_type == "yarn":
        original = params.get("original_max_position_embeddings") or max_position_embeddings
        attention = params.get("attention_factor")
        if attention is None:
            attention = 0.1 * math.log(fields["factor"]) + 1.0 if fields["factor"] > 1 else 1.0
        fields |= {"original_max_position_embeddings": int(original), "attention_factor": float(attention)}
        fields |= {"beta_fast": float(params.get("beta_fast") or 32), "beta_slow": float(params.get("beta_slow") or 1)}
        truncate = params.get("truncate")
        fields["truncate"] = True if truncate is None else bool(truncate)
    return RopeConfig(**fields)


def _params_of_kind(stated: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The entry of one layer type where the RoPE dictionary is nested, else the dictionary itself."""
    if not any(isinstance(value, Mapping) for value in stated.values()):
        return stated
    if not isinstance(stated.get(kind), Mapping):
        raise ValueError(f"rope_parameters has no entry for layer type {kind!r}: {sorted(stated)}")
    return stated[kind]


def _ropes_from_hf(config: Mapping[str, Any], layer_types: Sequence[str]) -> tuple[tuple[LayerType, RopeConfig], ...]:
    """RoPE of each layer type; old keys, new keys and per-layer-type nesting; contradictions are refused."""
    max_len = int(_required(config, "max_position_embeddings"))
    new, scaling = config.get("rope_parameters"), config.get("rope_scaling")

    def read(stated: Mapping[str, Any], kind: str, **known: float) -> RopeConfig:
        params: Mapping[str, Any] = known | dict(_params_of_kind(stated, kind))
        for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
            params = _merged(params, key, config.get(key))
        if params.get("rope_theta") is None:
            raise ValueError(f"config.json has no 'rope_theta', neither at the top nor in the RoPE parameters {params}")
        return _rope_from_dict(params, max_len)

    ropes = []
    for kind in sorted(set(layer_types)):
        rope = read(new or scaling or {}, kind)
        if new and scaling and read(scaling, kind, rope_theta=rope.theta) != rope:
            raise ValueError(f"rope_scaling={dict(scaling)} contradicts rope_parameters={dict(new)}")
        ropes.append((kind, rope))
    return tuple(ropes)


def _layer_types_from_hf(config: Mapping[str, Any], num_layers: int) -> tuple[LayerType, ...]:
    if (types := config.get("layer_types")) is not None:
        if unknown := sorted(set(types) - {"full_attention", "sliding_attention"}):
            raise ValueError(f"layer types {unknown} are not supported (full_attention, sliding_attention)")
        if "sliding_attention" in types and config.get("use_sliding_window") is False:
            raise ValueError("layer_types holds sliding_attention, but use_sliding_window is false")
        return tuple(types)
    if config.get("use_sliding_window"):
        # Qwen: the first max_window_layers use full attention.
        first = int(_required(config, "max_window_layers"))
        return tuple("full_attention" if i < first else "sliding_attention" for i in range(num_layers))
    return ("full_attention",) * num_layers


def _shape_from_hf(config: Mapping[str, Any]) -> TransformerShape:
    """Sizes of one layer. Qwen3 must state head size and kv heads: transformers' defaults are not derived."""
    is_qwen3 = config["model_type"] == "qwen3"
    hidden, num_heads = int(_required(config, "hidden_size")), int(_required(config, "num_attention_heads"))
    bias = bool(config.get("attention_bias", False))
    if is_qwen3:
        _required(config, "head_dim")
        _required(config, "num_key_value_heads")
    elif not config.get("head_dim") and hidden % num_heads:
        raise ValueError(f"hidden_size={hidden} is not a multiple of num_attention_heads={num_heads}, and no head_dim")
    return TransformerShape(
        hidden_size=hidden,
        intermediate_size=int(_required(config, "intermediate_size")),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden // num_heads),
        rms_norm_eps=float(_required(config, "rms_norm_eps")),
        qk_norm=is_qwen3,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def target_config_from_hf(config: Mapping[str, Any], *, taps: Sequence[int] | None = None) -> TargetConfig:
    """Builds a TargetConfig from the contents of a Hugging Face `config.json`.

    Args:
        config: the parsed JSON object.
        taps: tapped layers (0-based); None takes `default_taps`.

    Raises:
        ValueError: unsupported model type, activation, quantisation, RoPE type, or a missing key; the message names it.
    """
    model_type = config.get("model_type")
    if model_type not in ("llama", "qwen3"):
        raise ValueError(f"model_type {model_type!r} is not supported (llama, qwen3)")
    if (act := config.get("hidden_act", "silu")) != "silu":
        raise ValueError(f"hidden_act {act!r} is not supported (silu)")
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", quantization)
        raise ValueError(f"quantization_config {method!r} is not supported (float32, float16, bfloat16 weights)")
    num_layers = int(_required(config, "num_hidden_layers"))
    layer_types = _layer_types_from_hf(config, num_layers)
    eos = config.get("eos_token_id")
    return TargetConfig(
        model_type=model_type,
        shape=_shape_from_hf(config),
        num_layers=num_layers,
        vocab_size=int(_required(config, "vocab_size")),
        max_position_embeddings=int(_required(config, "max_position_embeddings")),
        layer_types=layer_types,
        ropes=_ropes_from_hf(config, layer_types),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        taps=tuple(taps) if taps is not None else default_taps(num_layers),
        sliding_window=config.get("sliding_window") if "sliding_attention" in layer_types else None,
        eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, Sequence) else (int(eos),),
        bos_token_id=config.get("bos_token_id"),
    )


def _read_json(path: Path) -> dict[str, Any]:
    """One JSON object; a broken file is named."""
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: a JSON {type(content).__name__}, expected an object")
    return content


def read_hf_config(folder: Path) -> dict[str, Any]:
    """`config.json`, with the end-of-text ids of `generation_config.json` where there is one.

    Chat models end their turns with ids that only the generation config lists (Llama 3: 3 ids against 1).
    """
    config = _read_json(folder / "config.json")
    if (generation := folder / "generation_config.json").is_file():
        eos = _read_json(generation).get("eos_token_id")
        config |= {} if eos is None else {"eos_token_id": eos}
    return config
