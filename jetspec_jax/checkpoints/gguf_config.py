"""The Hugging Face style config of a GGUF file, from its metadata.

`hf_config.py` reads the result like any `config.json`. Hyperparameters that are not understood are refused by name,
never skipped: most of them change the text.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jetspec_jax.checkpoints.gguf import ROPE_FREQS, GgufReader
from jetspec_jax.checkpoints.reader import CheckpointError, read_bytes
from jetspec_jax.config import RopeConfig
from jetspec_jax.ops.norm_rope import inverse_frequencies

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# Metadata keys (after the architecture prefix) and the config keys they become.
REQUIRED = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
}
OPTIONAL = {"attention.head_count_kv", "attention.key_length", "attention.value_length", "vocab_size"}
ROPE = {"rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.finetuned"}  # fmt: skip
# Values that mean "off"; any other value is refused.
NEUTRAL = {"expert_count": 0, "expert_used_count": 0, "rope.scaling.attn_factor": 1.0, "rope.scale_linear": 1.0}

# low_freq_factor, high_freq_factor, original context of every released Llama 3.x (the tensor keeps the result only).
LLAMA3_SCALINGS = ((1.0, 4.0, 8192),)


def hf_config_from_gguf(reader: GgufReader) -> dict[str, Any]:
    """Config dictionary with the keys of a Hugging Face `config.json`.

    Raises:
        CheckpointError: unsupported architecture, missing, unknown or contradictory hyperparameters, by name.
    """
    metadata, path = reader.header.metadata, reader.path
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise CheckpointError(f"{path}: architecture {architecture!r} is not supported ({', '.join(ARCHITECTURES)})")
    prefix = f"{architecture}."
    given = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    _refuse_unknown(given, reader)
    config = {name: given[key] for key, name in REQUIRED.items()}
    config |= {"architectures": [ARCHITECTURES[architecture]], "model_type": architecture, "hidden_act": "silu"}
    config["num_key_value_heads"] = given.get("attention.head_count_kv", config["num_attention_heads"])
    config["head_dim"] = _head_dim(given, reader)
    config["vocab_size"] = _vocab_size(given, reader)
    rope = {"rope_theta": config.pop("rope_theta"), **_rope_scaling(given, config["head_dim"], reader)}
    keys = set(reader.keys())
    return config | {
        "rope_parameters": rope,
        "tie_word_embeddings": "lm_head.weight" not in keys,
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in keys,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in keys,
        "eos_token_id": _eos_ids(metadata),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
    }


def _refuse_unknown(given: Mapping[str, Any], reader: GgufReader) -> None:
    problems = [f"no {key!r}" for key in REQUIRED if key not in given]
    known = REQUIRED.keys() | OPTIONAL | ROPE | NEUTRAL.keys()
    problems += [f"{key!r} is not supported" for key in sorted(given.keys() - known)]
    problems += [
        f"{key!r}={given[key]} is not supported" for key in NEUTRAL if given.get(key, NEUTRAL[key]) != NEUTRAL[key]
    ]
    problems += [f"{key!r} differs between layers" for key, value in given.items() if isinstance(value, list)]
    if problems:
        raise CheckpointError(f"{reader.path}: model metadata: {'; '.join(problems)}")


def _head_dim(given: Mapping[str, Any], reader: GgufReader) -> int:
    """Size of one head; keys, values and RoPE must agree on it."""
    derived = given["embedding_length"] // given["attention.head_count"]
    head_dim = given.get("attention.key_length", derived)
    for key in ("attention.value_length", "rope.dimension_count"):
        if given.get(key, head_dim) != head_dim:
            raise CheckpointError(f"{reader.path}: {key}={given[key]} with heads of size {head_dim} is not supported")
    return head_dim


def _vocab_size(given: Mapping[str, Any], reader: GgufReader) -> int:
    """Rows of the embedding, which may be padded beyond the tokenizer's list."""
    if "token_embd.weight" not in reader.header.tensors:
        raise CheckpointError(f"{reader.path}: no tensor 'token_embd.weight'")
    rows = reader.shape("model.embed_tokens.weight")[0]
    num_tokens = len(reader.header.metadata.get("tokenizer.ggml.tokens", ()))
    if given.get("vocab_size", rows) != rows or num_tokens > rows:
        raise CheckpointError(
            f"{reader.path}: the embedding has {rows} rows, vocab_size={given.get('vocab_size')}, {num_tokens} tokens"
        )
    return rows


def _rope_scaling(given: Mapping[str, Any], head_dim: int, reader: GgufReader) -> dict[str, Any]:
    """RoPE type and its parameters, Hugging Face keys; `hf_config.py` refuses types it does not know."""
    rope_type = given.get("rope.scaling.type", "none")
    if ROPE_FREQS in reader.header.tensors:
        if rope_type != "none":
            raise CheckpointError(f"{reader.path}: {ROPE_FREQS} together with rope.scaling.type={rope_type!r}")
        return _llama3_scaling(given["rope.freq_base"], head_dim, reader)
    if rope_type == "none":
        if given.get("rope.scaling.factor", 1.0) != 1.0:
            raise CheckpointError(f"{reader.path}: rope.scaling.factor={given['rope.scaling.factor']} without a type")
        return {"rope_type": "default"}
    names = {"factor": "factor", "original_context_length": "original_max_position_embeddings",
             "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}  # fmt: skip
    stated = {hf: given[f"rope.scaling.{key}"] for key, hf in names.items() if f"rope.scaling.{key}" in given}
    return {"rope_type": rope_type, **stated}


def _llama3_scaling(theta: float, head_dim: int, reader: GgufReader) -> dict[str, Any]:
    """The llama3 parameters behind `rope_freqs.weight`, found by reproducing the tensor; else it is refused."""
    tensor = reader.header.tensors[ROPE_FREQS]
    if tensor.type_name != "F32" or tensor.shape != (head_dim // 2,):
        raise CheckpointError(f"{reader.path}: {ROPE_FREQS} is {tensor.type_name}{list(tensor.shape)}, not supported")
    divisors = read_bytes(reader.path, tensor.offset, tensor.num_bytes).view(np.float32)
    plain = inverse_frequencies(RopeConfig(theta=theta), head_dim)
    if (divisors == 1).all():
        return {"rope_type": "default"}
    for low, high, original in LLAMA3_SCALINGS:
        scaling = {"factor": float(divisors.max()), "low_freq_factor": low, "high_freq_factor": high}
        scaling |= {"rope_type": "llama3", "original_max_position_embeddings": original}
        if np.allclose(plain / inverse_frequencies(RopeConfig(theta=theta, **scaling), head_dim), divisors, rtol=1e-4):
            return scaling
    raise CheckpointError(f"{reader.path}: {ROPE_FREQS} is not the scaling of a known model: {divisors.tolist()}")


def _eos_ids(metadata: Mapping[str, Any]) -> list[int]:
    """End of text, of turn and of message, without repetition."""
    names = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    return list(dict.fromkeys(metadata[name] for name in names if name in metadata))
