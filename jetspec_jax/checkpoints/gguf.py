"""GGUF files of Llama and Qwen3 models: header, tensors under their Hugging Face names, dequantisation.

The header is parsed here, because the `gguf` package takes 3.6 s for a 49k vocabulary and does not notice a truncated
file; block sizes and dequantisation are the package's. `gguf_config.py` turns the metadata into a config,
`conversion.py` caches the dequantised model.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jetspec_jax.checkpoints.reader import CheckpointError, read_bytes

# GGUF value types: struct formats of the scalars, and the two composite ones.
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
FLOAT32, STRING, ARRAY = 6, 8, 9

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


class _Cursor:
    """Reads values one after the other; running off the end is an error that names the file."""

    def __init__(self, data: mmap.mmap, path: Path):
        self.data, self.path, self.offset, self.size = data, path, 0, len(data)

    def skip(self, num_bytes: int) -> int:
        """Passes over some bytes and returns where they start."""
        start = self.offset
        self.offset += num_bytes
        if self.offset > self.size:
            raise CheckpointError(f"{self.path}: expected at least {self.offset} bytes of header, found {self.size}")
        return start

    def scalar(self, form: str) -> Any:
        """One number."""
        return struct.unpack_from(form, self.data, self.skip(struct.calcsize(form)))[0]

    def string(self) -> str:
        """One string; bytes that are not UTF-8 survive as surrogates."""
        num_bytes = self.scalar("<Q")
        start = self.skip(num_bytes)
        return self.data[start : start + num_bytes].decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        """One metadata value. Floats are rounded to their shortest decimal: 1e-5, not 9.99999974e-06."""
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self._array(self.scalar("<I"), self.scalar("<Q"))
        if kind not in SCALARS:
            raise CheckpointError(f"{self.path}: unknown metadata type {kind} at byte {self.offset}")
        number = self.scalar(SCALARS[kind])
        return float(str(np.float32(number))) if kind == FLOAT32 else number

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in SCALARS:
            form = SCALARS[kind]
            start = self.skip(count * struct.calcsize(form))
            return list(struct.unpack_from(f"<{count}{form[1]}", self.data, start))
        if 4 * count > self.size - self.offset:  # every entry takes at least 4 bytes
            self.skip(4 * count)
        return self._strings(count) if kind == STRING else [self.value(kind) for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        """Many strings: the vocabulary, 100 000 entries in 60 ms."""
        data, strings, length_at = self.data, [], struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = self.skip(8) + 8
            self.offset = start + length_at(data, start - 8)[0]
            strings.append(data[start : self.offset].decode("utf-8", "surrogateescape"))
        self.skip(0)
        return strings


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies; shape in row-major order, `offset` from the start of the file, bytes."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata and tensor table of a file that is known to be complete."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def _read_tensor_info(cursor: _Cursor) -> GgufTensor:
    """One line of the tensor table; the offset still counts from the start of the data."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name, num_dims = cursor.string(), cursor.scalar("<I")
    if num_dims > 4:
        raise CheckpointError(f"{cursor.path}: tensor {name!r} has {num_dims} dimensions, at most 4 are possible")
    shape = tuple(cursor.scalar("<Q") for _ in range(num_dims))[::-1]
    type_id, offset = cursor.scalar("<I"), cursor.scalar("<Q")
    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        raise CheckpointError(f"{cursor.path}: tensor {name!r} has unknown type {type_id}") from None
    block_len, block_bytes = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block_len:
        raise CheckpointError(f"{cursor.path}: tensor {name!r} {list(shape)} is not whole {kind.name} blocks")
    return GgufTensor(name, kind.name, shape, offset, math.prod(shape) // block_len * block_bytes)


def _read_table(cursor: _Cursor, num_tensors: int, metadata: Mapping[str, Any]) -> dict[str, GgufTensor]:
    """The tensor table with absolute offsets, checked to cover the file."""
    table = [_read_tensor_info(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise CheckpointError(f"{cursor.path}: general.alignment={alignment}")
    tensors, start = {}, -(-cursor.offset // alignment) * alignment
    end = start if table else cursor.offset
    for entry in table:
        offset, end = start + entry.offset, -(-end // alignment) * alignment
        if offset != end or entry.name in tensors:
            reason = "twice in the table" if entry.name in tensors else f"expected at byte {end}, found at {offset}"
            raise CheckpointError(f"{cursor.path}: tensor {entry.name!r}: {reason}")
        tensors[entry.name] = GgufTensor(entry.name, entry.type_name, entry.shape, offset, entry.num_bytes)
        end = offset + entry.num_bytes
    if not end <= cursor.size < end + alignment:
        raise CheckpointError(f"{cursor.path}: expected {end} bytes, found {cursor.size}")
    return tensors


def read_gguf_header(path: Path) -> GgufHeader:
    """Parses metadata (tokenizer included) and tensor table; no tensor data is read.

    Raises:
        CheckpointError: not a GGUF file, truncated, overlong or malformed; names file, expected and found bytes.
    """
    size = path.stat().st_size
    if size < 24:
        raise CheckpointError(f"{path}: expected at least 24 bytes of GGUF header, found {size}")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data, path)
        if (magic := data[cursor.skip(4) : 4]) != b"GGUF":
            raise CheckpointError(f"{path}: starts with {magic!r}, not a GGUF file")
        if (version := cursor.scalar("<I")) not in (2, 3):
            raise CheckpointError(f"{path}: GGUF version {version} is not supported (2, 3; little-endian)")
        num_tensors, num_values = cursor.scalar("<Q"), cursor.scalar("<Q")
        metadata = {}
        for _ in range(num_values):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.scalar("<I"))
        return GgufHeader(path, metadata, _read_table(cursor, num_tensors, metadata))


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
