"""Safetensors files: headers checked before anything is read, tensors read one at a time, streaming writer.

The format is 8 bytes of header length, a JSON header, then the data. A file that is not exactly as long as its header
says is refused at opening (bug case C26: a mapped, truncated file reads as zeros). Does not know any model.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jetspec_jax.checkpoints.reader import CheckpointError, read_bytes

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"

# Upper bounds of what a header takes, for the file and for each of its tensors besides the name.
_HEADER_BYTES, _ENTRY_BYTES = 128, 160

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: `offset` counts from the start of the file, bytes."""

    path: Path
    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Header JSON, start of the data and file size, bytes."""
    size = path.stat().st_size
    if size < 8:
        raise CheckpointError(f"{path}: expected at least 8 bytes of safetensors header, found {size}")
    header_len = int(read_bytes(path, 0, 8).view("<u8")[0])
    if 8 + header_len > size:
        raise CheckpointError(f"{path}: expected at least {8 + header_len} bytes (header), found {size}")
    try:
        header = json.loads(read_bytes(path, 8, header_len).tobytes())
    except ValueError as error:
        raise CheckpointError(f"{path}: the {header_len} header bytes are not JSON: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is a JSON {type(header).__name__}, expected an object")
    header.pop("__metadata__", None)
    return header, 8 + header_len, size


def _parse_entry(path: Path, key: str, entry: Any, data_start: int) -> StoredTensor:
    """One header entry, its byte range checked against its shape and dtype."""
    try:
        type_name, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise CheckpointError(f"{path}: malformed header entry {key!r}: {entry}")
    if type_name not in DTYPES:
        raise CheckpointError(f"{path}: {key!r} has dtype {type_name!r}, not supported ({', '.join(DTYPES)})")
    expected = math.prod(shape) * DTYPES[type_name].itemsize
    if end - begin != expected:
        raise CheckpointError(
            f"{path}: {key!r} {type_name}{list(shape)}: expected {expected} bytes, found {end - begin}"
        )
    return StoredTensor(path, type_name, shape, data_start + begin, expected)


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """Tensors of one file, after checking that they cover its data exactly.

    Raises:
        CheckpointError: empty, truncated, overlong or malformed file; names file, expected and found bytes.
    """
    header, data_start, size = _read_header(path)
    tensors = {key: _parse_entry(path, key, entry, data_start) for key, entry in header.items()}
    end = data_start
    for key, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if tensor.offset != end:
            raise CheckpointError(f"{path}: data of {key!r}: expected at byte {end}, found at byte {tensor.offset}")
        end += tensor.num_bytes
    if end != size:
        raise CheckpointError(f"{path}: expected {end} bytes, found {size}")
    return tensors


def read_index(path: Path) -> dict[str, str]:
    """Shard file of each key, from a `model.safetensors.index.json`; malformed ones are a CheckpointError."""
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        sound = all(Path(shard).name == shard for shard in weight_map.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not an index with a 'weight_map': {error!r}") from None
    if not sound:
        raise CheckpointError(f"{path}: shards must be files of the same folder: {sorted(set(weight_map.values()))}")
    return weight_map


@dataclass(frozen=True)
class SafetensorsReader:
    """Tensors of one folder, whatever the number of shards; a `TensorReader`."""

    path: Path
    tensors: Mapping[str, StoredTensor]

    def keys(self) -> tuple[str, ...]:
        """Names of all tensors."""
        return tuple(self.tensors)

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self.tensors[key].shape

    def dtype(self, key: str) -> np.dtype:
        """NumPy dtype of one tensor (bf16 and fp8 through ml_dtypes)."""
        return DTYPES[self.tensors[key].type_name]

    def stored_type(self, key: str) -> str:
        """Safetensors name of the dtype."""
        return self.tensors[key].type_name

    def num_bytes(self, key: str) -> int:
        """Bytes on disk."""
        return self.tensors[key].num_bytes

    def read(self, key: str) -> np.ndarray:
        """The tensor, in memory that the caller owns."""
        tensor = self.tensors[key]
        data = read_bytes(tensor.path, tensor.offset, tensor.num_bytes)
        return data.view(DTYPES[tensor.type_name]).reshape(tensor.shape)


def open_safetensors(folder: Path) -> SafetensorsReader:
    """Opens `model.safetensors`, or the shards of `model.safetensors.index.json`, reading headers only.

    Raises:
        CheckpointError: a file is damaged, a shard is missing, or index and shards disagree.
    """
    if (single := folder / SINGLE_FILE).is_file():
        return SafetensorsReader(single, read_safetensors_header(single))
    index = folder / INDEX_FILE
    if not index.is_file():
        raise CheckpointError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE}")
    weight_map = read_index(index)
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise CheckpointError(f"{index}: shards {missing} are missing")
    found = {shard: read_safetensors_header(folder / shard) for shard in shards}
    problems = [f"{key!r} is not in {shard}" for key, shard in weight_map.items() if key not in found[shard]]
    problems += [f"{key!r} of {shard} is not in the index" for shard in shards for key in found[shard]
                 if weight_map.get(key) != shard]  # fmt: skip
    if problems:
        raise CheckpointError(f"{index}: {'; '.join(problems)}")
    return SafetensorsReader(index, {key: found[shard][key] for key, shard in weight_map.items()})


def write_safetensors(
    path: Path, specs: Mapping[str, tuple[np.dtype, tuple[int, ...]]], arrays: Iterable[np.ndarray]
) -> None:
    """Writes tensors as they come, so that the model never has to fit in memory.

    Args:
        path: file to write.
        specs: dtype and shape of each key, in the order of `arrays`.
        arrays: one array per key.
    """
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for key, (dtype, shape) in specs.items():
        num_bytes = _num_bytes(dtype, shape)
        header[key] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data starts at a multiple of 8
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (key, (dtype, shape)), array in zip(specs.items(), arrays, strict=True):
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(f"{key!r}: expected {dtype}{list(shape)}, got {array.dtype}{list(array.shape)}")
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def write_shards(
    folder: Path,
    specs: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
    read: Callable[[str], np.ndarray],
    max_bytes: int,
) -> None:
    """Writes `model.safetensors`, or shards and their index, each file of at most `max_bytes`.

    Args:
        folder: where to.
        specs: dtype and shape of each key.
        read: gives one tensor; called once for each.
        max_bytes: limit of one file, header included.

    Raises:
        ValueError: one tensor alone is larger.
    """
    shards = _split(specs, max_bytes)
    if len(shards) == 1:
        write_safetensors(folder / SINGLE_FILE, specs, map(read, specs))
        return
    weight_map = {}
    for number, keys in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / name, {key: specs[key] for key in keys}, map(read, keys))
        weight_map |= dict.fromkeys(keys, name)
    total = sum(_num_bytes(*spec) for spec in specs.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def _num_bytes(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


def _split(specs: Mapping[str, tuple[np.dtype, tuple[int, ...]]], max_bytes: int) -> list[list[str]]:
    """Keys of each shard, in order; every shard is as full as the next tensor lets it be."""
    shards: list[list[str]] = [[]]
    used = _HEADER_BYTES
    for key, spec in specs.items():
        size = _num_bytes(*spec) + len(key) + _ENTRY_BYTES
        if _HEADER_BYTES + size > max_bytes:
            raise ValueError(f"{key!r} {list(spec[1])} has {_num_bytes(*spec)} bytes, a file may have {max_bytes}")
        if used + size > max_bytes:
            shards.append([])
            used = _HEADER_BYTES
        shards[-1].append(key)
        used += size
    return shards
