"""Dequantises a GGUF file once into a folder in Hugging Face layout, kept in a user cache.

Quantised tensors become float32, which holds every dequantised value exactly (scale times integer plus offset needs
more than bf16 or fp16 offer); tensors that the file stores as F32, F16 or BF16 keep their type. A Q4_1 file grows about
5.5 times. The folder is written elsewhere and renamed, so it is complete or absent.
"""

import fcntl
import hashlib
import json
import shutil
from pathlib import Path

from jetspec_jax.checkpoints.gguf import open_gguf
from jetspec_jax.checkpoints.gguf_config import hf_config_from_gguf
from jetspec_jax.checkpoints.hf_config import target_config_from_hf
from jetspec_jax.checkpoints.layouts import find_problems, target_duplicates, target_rows
from jetspec_jax.checkpoints.reader import CheckpointError, map_ahead
from jetspec_jax.checkpoints.safetensors import SINGLE_FILE, write_safetensors

# Part of the cache key; raise it whenever the written folder changes.
FORMAT_VERSION = 1

POINTER_FILE = "gguf.json"


def default_cache_dir() -> Path:
    """Where converted models go unless the caller says otherwise."""
    return Path.home() / ".cache" / "jetspec_jax"


def converted(gguf_path: Path, cache_dir: Path | None = None) -> Path:
    """Folder with the dequantised model; made on the first call, found on later ones.

    The key is file name, size, modification time, first megabyte and format version. `gguf_source(folder)` leads back
    to the file, whose metadata hold the tokenizer.

    Raises:
        CheckpointError: damaged file or unsupported model; found before anything is dequantised.
    """
    cache = cache_dir or default_cache_dir()
    folder = cache / _cache_key(gguf_path)
    if folder.is_dir() and gguf_source(folder) == gguf_path.absolute():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one converter at a time; released even if it is killed
        if not folder.is_dir():
            _convert(gguf_path, folder)
        else:
            _write_pointer(folder, gguf_path)
    return folder


def gguf_source(folder: Path) -> Path | None:
    """The GGUF file a folder was converted from, None for a folder that was not."""
    pointer = folder / POINTER_FILE
    return Path(json.loads(pointer.read_text())["path"]) if pointer.is_file() else None


def _cache_key(gguf_path: Path) -> str:
    stat = gguf_path.stat()
    with open(gguf_path, "rb") as file:
        head = file.read(1 << 20)
    digest = hashlib.sha256(repr((FORMAT_VERSION, stat.st_size, stat.st_mtime_ns)).encode() + head)
    return f"{gguf_path.stem}-{digest.hexdigest()[:16]}"


def _write_pointer(folder: Path, gguf_path: Path) -> None:
    """Replaces the pointer in one step: readers of a shared cache take no lock."""
    draft = folder / f".{POINTER_FILE}"
    draft.write_text(json.dumps({"path": str(gguf_path.absolute())}))
    draft.replace(folder / POINTER_FILE)


def _convert(gguf_path: Path, folder: Path) -> None:
    """Writes the folder under another name and renames it. The caller holds the lock."""
    reader = open_gguf(gguf_path)
    config = hf_config_from_gguf(reader)
    target = target_config_from_hf(config)
    if problems := find_problems(target_rows(target), reader, target_duplicates(target)):
        raise CheckpointError("\n  ".join([f"{gguf_path}: the weights do not fit the metadata:", *problems]))
    draft = folder.with_name(f".{folder.name}-partial")
    shutil.rmtree(draft, ignore_errors=True)  # of a killed conversion
    draft.mkdir()
    try:
        keys = reader.keys()
        specs = {key: (reader.dtype(key), reader.shape(key)) for key in keys}
        write_safetensors(draft / SINGLE_FILE, specs, map_ahead(reader.read, keys))
        (draft / "config.json").write_text(json.dumps(config, indent=2))
        _write_pointer(draft, gguf_path)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
