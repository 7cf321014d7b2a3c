"""Tiny random checkpoints in Hugging Face layout, written without transformers and without our weight table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

# D=32, F=48, N=4, K=2, H=8, V=40, two layers.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 40,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def hf_config(**changes: Any) -> dict[str, Any]:
    """The tiny config with some keys replaced; None removes a key."""
    return {key: value for key, value in (LLAMA | changes).items() if value is not None}


def hf_weights(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random float32 tensors under the names and shapes that transformers writes."""
    width, mlp, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.input_layernorm.weight": (width,), f"{at}.post_attention_layernorm.weight": (width,)}
        shapes |= {f"{at}.self_attn.q_proj.weight": (q_size, width), f"{at}.self_attn.k_proj.weight": (kv_size, width)}
        shapes |= {f"{at}.self_attn.v_proj.weight": (kv_size, width), f"{at}.self_attn.o_proj.weight": (width, q_size)}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (mlp, width) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (width, mlp)
        if config["model_type"] == "qwen3":
            shapes |= {f"{at}.self_attn.{name}_norm.weight": (head,) for name in "qk"}
        if config.get("attention_bias"):
            sizes = {"q": q_size, "k": kv_size, "v": kv_size, "o": width}
            shapes |= {f"{at}.self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
        if config.get("mlp_bias"):
            shapes |= {f"{at}.mlp.{k}_proj.bias": (n,) for k, n in {"gate": mlp, "up": mlp, "down": width}.items()}
    rng = np.random.default_rng(0)
    return {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


def write_folder(folder: Path, config: dict[str, Any], weights: dict[str, np.ndarray]) -> Path:
    """A model folder with one safetensors file."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture
def make_config() -> Callable[..., dict[str, Any]]:
    return hf_config


@pytest.fixture
def make_weights() -> Callable[..., dict[str, np.ndarray]]:
    return hf_weights


@pytest.fixture
def make_folder(tmp_path) -> Callable[..., Path]:
    """`make_folder(config, weights)`: a folder; both default to the tiny Llama."""

    def make(config: dict[str, Any] | None = None, weights: dict[str, np.ndarray] | None = None) -> Path:
        config = config or hf_config()
        return write_folder(tmp_path / "model", config, hf_weights(config) if weights is None else weights)

    return make
