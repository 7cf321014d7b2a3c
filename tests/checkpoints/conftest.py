"""Tiny random checkpoints in Hugging Face layout, written without transformers and without our weight table."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from jetspec_jax.checkpoints.calibration_file import CalibrationEntry
from jetspec_jax.checkpoints.drafter_files import save_drafter
from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.models import functional
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.target import Target
from jetspec_jax.testing import tiny_config

# D=32, F=64, N=4, K=2, H=8, V=40, two layers.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 64,
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


# The naming and row order of llama.cpp's converter, stated here a second time on purpose.
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_tensors(config: dict[str, Any], weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors as the converter writes them: renamed, q and k rows of Llama interleaved."""
    tensors = {}
    for key, value in weights.items():
        stem, leaf = key.rsplit(".", 1)
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        name = f"blk.{match[1]}.{GGUF_NAMES[match[2]]}" if match else GGUF_NAMES[stem]
        if config["model_type"] == "llama" and name.endswith(("attn_q", "attn_k")):
            heads = config["num_attention_heads" if name.endswith("q") else "num_key_value_heads"]
            halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
            value = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
        tensors[f"{name}.{leaf}"] = value
    return tensors


def gguf_metadata(config: dict[str, Any]) -> dict[str, Any]:
    """Hyperparameters that every converted model has, without the architecture prefix."""
    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}
    return {
        "block_count": config["num_hidden_layers"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "context_length": config["max_position_embeddings"],
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": config["head_dim"],
    }


def write_gguf(
    path: Path,
    architecture: str,
    metadata: dict[str, Any],
    tensors: dict[str, np.ndarray],
    quantised: str | None = None,
) -> Path:
    """A GGUF file by the gguf package; None in `metadata` drops a key, keys with a colon get no prefix (`:a.b`)."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = key[1:] if key.startswith(":") else f"{architecture}.{key}"
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        if value is not None:
            add.get(type(value), writer.add_array)(name, value)
    for name, value in tensors.items():
        if quantised and value.ndim == 2:
            kind = gguf.GGMLQuantizationType[quantised]
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def make_gguf(tmp_path) -> Callable[..., Path]:
    """`make_gguf(config, weights, metadata, tensors, quantised)`: the last three are changes to what follows."""

    def make(config=None, weights=None, metadata=None, tensors=None, quantised=None) -> Path:
        config = config or hf_config()
        named = gguf_tensors(config, hf_weights(config) if weights is None else weights) | (tensors or {})
        named = {name: value for name, value in named.items() if value is not None}
        values = gguf_metadata(config) | (metadata or {})
        return write_gguf(tmp_path / "tiny.gguf", config["model_type"], values, named, quantised)

    return make


def compiled_logits(target: Target, tokens: np.ndarray) -> np.ndarray:
    """Logits [B, T, V] of whole sequences; weights are arguments of the program, not constants in it."""
    module_def, leaves = functional.split(target)

    @jax.jit
    def run(leaves, tokens):
        model = module_def.merge(leaves)
        return model.logits(model(tokens, model.init_cache(*tokens.shape))[0])

    return np.asarray(run(leaves, jnp.asarray(tokens, jnp.int32)))


@pytest.fixture
def logits_of() -> Callable[[Target, np.ndarray], np.ndarray]:
    return compiled_logits


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


# Drafters of `tiny_config()`.
save_tiny = partial(save_drafter, target=tiny_config(), target_name="tiny")
ENTRY = CalibrationEntry(
    temperature=0.0,
    refine="J1-R1",
    num_outcomes=4,
    coefficients=(0.1, 1.0, 0.2, 0.3, -0.4, 0.0),
    anchor_temperature=0.9,
    conformal_threshold=0.99,
    decision_temperature=0.125,
    num_rounds=100,
    coverage=0.95,
)


def tiny_parts(dtype: Any = jnp.float32) -> tuple[Draft, Adapter]:
    """A random draft of two layers and an adapter of three."""
    draft = Draft(draft_config_for(tiny_config(), num_layers=2, block_rows=5), dtype=dtype, rngs=nnx.Rngs(1))
    config = adapter_config_for(tiny_config(), layers_per_module=(1, 2))
    return draft, Adapter.random(config, dtype=dtype, rngs=nnx.Rngs(2))


def arrays_of_modules(**modules: nnx.Module) -> dict[str, np.ndarray]:
    """Weights by `NAME.path`."""
    return {
        ".".join(map(str, (name, *path))): np.asarray(variable[...])
        for name, module in modules.items()
        for path, variable in nnx.to_flat_state(nnx.state(module))
    }


def arrays_of_drafter(drafter: JetSpecPP) -> dict[str, np.ndarray]:
    """Weights by `draft.path` and `adapter.path`."""
    modules = {"draft": drafter._definition.merge(drafter._leaves)}
    if drafter.predictor is not None:
        modules["adapter"] = drafter.predictor._definition.merge(drafter.predictor._leaves)
    return arrays_of_modules(**modules)


@pytest.fixture(scope="session")
def parts_of() -> Callable[..., tuple[Draft, Adapter]]:
    return tiny_parts


@pytest.fixture(scope="session")
def parts() -> tuple[Draft, Adapter]:
    return tiny_parts()


@pytest.fixture(scope="session")
def save() -> Callable[..., None]:
    """`save_drafter` for the tiny target."""
    return save_tiny


@pytest.fixture(scope="session")
def entry() -> CalibrationEntry:
    return ENTRY


@pytest.fixture(scope="session")
def saved(parts, tmp_path_factory) -> Path:
    """A sound drafter folder, not to be touched."""
    folder = tmp_path_factory.mktemp("drafters") / "tiny"
    save_tiny(folder, *parts, [ENTRY], storage="float32")
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


@pytest.fixture(scope="session")
def named() -> Callable[..., dict[str, np.ndarray]]:
    return arrays_of_modules


@pytest.fixture(scope="session")
def weights_of() -> Callable[[JetSpecPP], dict[str, np.ndarray]]:
    return arrays_of_drafter
