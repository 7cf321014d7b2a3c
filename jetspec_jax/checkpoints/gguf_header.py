"""The header of a GGUF file: metadata (tokenizer included) and tensor table, checked to cover the file.

Parsed here, because the `gguf` package takes 3.6 s for a 49k vocabulary and does not notice a truncated file; block
sizes are the package's.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jetspec_jax.checkpoints.reader import CheckpointError

# GGUF value types: struct formats of the scalars, and the two composite ones.
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
FLOAT32, STRING, ARRAY = 6, 8, 9


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
