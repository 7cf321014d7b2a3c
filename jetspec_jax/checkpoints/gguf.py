"""GGUF files of Llama and Qwen3 models: tensors under their Hugging Face names, dequantised by the `gguf` package.

`gguf_header.py` reads the header, `gguf_config.py` turns its metadata into a config, `conversion.py` caches the
dequantised model.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import ml_dtypes
import numpy as np

from jetspec_jax.checkpoints.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from jetspec_jax.checkpoints.reader import CheckpointError, read_bytes

UNQUANTISED = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
ROPE_FREQS = "rope_freqs.weight"

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor; names outside the map stay, so that the weight table refuses them.

    Example: `blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`.
    """
    stem, _, leaf = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{leaf}"
    if (match := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)) and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{leaf}"
    return name


def permute_rope_rows(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Half-split RoPE rows to interleaved ones, as llama.cpp stores q and k of the llama architecture.

    Example, one head of size 4: rows 0, 1, 2, 3 -> 0, 2, 1, 3.
    """
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpermute_rope_rows(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Inverse of `permute_rope_rows`: pairs (2i, 2i + 1) become (i, i + H/2), the convention of `ops/norm_rope.py`."""
    return rows.reshape(num_heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class GgufReader:
    """Tensors of a GGUF file as a `TensorReader`: Hugging Face names, quantised ones as exact float32."""

    header: GgufHeader

    @property
    def path(self) -> Path:
        """The file."""
        return self.header.path

    @cached_property
    def _tensors(self) -> dict[str, GgufTensor]:
        return {hf_name(name): tensor for name, tensor in self.header.tensors.items() if name != ROPE_FREQS}

    def keys(self) -> tuple[str, ...]:
        """Hugging Face names of all weights (`rope_freqs.weight` is part of the config)."""
        return tuple(self._tensors)

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self._tensors[key].shape

    def dtype(self, key: str) -> np.dtype:
        """The stored dtype where it is a float, else float32."""
        return UNQUANTISED.get(self._tensors[key].type_name, UNQUANTISED["F32"])

    def stored_type(self, key: str) -> str:
        """GGML type."""
        return self._tensors[key].type_name

    def num_bytes(self, key: str) -> int:
        """Bytes on disk."""
        return self._tensors[key].num_bytes

    def read(self, key: str) -> np.ndarray:
        """The tensor, dequantised, rows in Hugging Face order."""
        tensor = self._tensors[key]
        data = read_bytes(self.path, tensor.offset, tensor.num_bytes).reshape(*tensor.shape[:-1], -1)
        if num_heads := self._interleaved_heads(key):
            data = unpermute_rope_rows(data.reshape(tensor.shape[0], -1), num_heads)  # rows of bytes: a small copy
        if tensor.type_name in UNQUANTISED:
            return data.view(UNQUANTISED[tensor.type_name]).reshape(tensor.shape)
        return _dequantise(data, tensor, self.path)

    def _interleaved_heads(self, key: str) -> int:
        """Heads of a q or k projection that llama.cpp permuted, else 0."""
        if self.header.metadata.get("general.architecture") != "llama":
            return 0
        if ".self_attn.q_proj." in key:
            return self.header.metadata["llama.attention.head_count"]
        if ".self_attn.k_proj." in key:
            heads = self.header.metadata["llama.attention.head_count"]
            return self.header.metadata.get("llama.attention.head_count_kv", heads)
        return 0


def _dequantise(data: np.ndarray, tensor: GgufTensor, path: Path) -> np.ndarray:
    """Blocks [*rows, bytes] to float32 [*rows, columns]."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        return dequantize(data, GGMLQuantizationType[tensor.type_name]).reshape(tensor.shape)
    except NotImplementedError:
        raise CheckpointError(f"{path}: tensor {tensor.name!r} has type {tensor.type_name}, not supported") from None


def open_gguf(path: Path) -> GgufReader:
    """Opens a GGUF file after checking its header.

    Raises:
        CheckpointError: as `read_gguf_header`.
    """
    return GgufReader(read_gguf_header(path))
