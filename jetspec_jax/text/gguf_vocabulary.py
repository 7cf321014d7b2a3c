"""The vocabulary in a GGUF file's metadata, as a `tokenizers.Tokenizer`.

Only byte-level BPE (`tokenizer.ggml.model` "gpt2") with a known pre-tokenizer; anything else is refused, since a wrong
split gives wrong ids without an error. The metadata is parsed here because `gguf.GGUFReader` makes numpy views of
every string: 2.7 s for a vocabulary of 49k, against 0.1 s.
"""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Token types (tokenizer.ggml.token_type). UNUSED entries pad the vocabulary and stay unknown to the tokenizer.
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5

# Value types of the GGUF format -> struct format character.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

# How text is cut before BPE, per tokenizer.ggml.pre. They differ in the number of digits taken at once.
SPLITS = {
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF file (not the tensors), arrays as lists."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file (it starts with {data[:4]!r})")
        try:
            return _read_pairs(data)
        except (struct.error, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error


def build_backend(metadata: Mapping[str, Any]) -> Any:
    """A `tokenizers.Tokenizer` from `tokenizer.ggml.*`; it adds BOS where the metadata says so."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    if (model := metadata.get("tokenizer.ggml.model")) != "gpt2":
        raise ValueError(f"GGUF tokenizer model {model!r} is not supported, only 'gpt2' (byte-level BPE)")
    pre = metadata.get("tokenizer.ggml.pre", "default")
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"]
    backend = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens) if types[i] != UNUSED},
            merges=[tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]],
            ignore_merges=pre == "llama-bpe",  # Llama 3 takes a whole word that is in the vocabulary, merges or not
        )
    )
    backend.pre_tokenizer = _pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    # Both kinds are in the BPE vocabulary too, so they keep their ids.
    backend.add_special_tokens([token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL])
    user_defined = [token for token, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    if (bos_token_id := _added_bos_token_id(metadata)) is not None:
        bos_token = tokens[bos_token_id]
        backend.post_processor = processors.TemplateProcessing(
            single=[bos_token, "$A"], special_tokens=[(bos_token, bos_token_id)]
        )
    return backend


def _pre_tokenizer(pre: str) -> Any:
    """What cuts text into words and maps bytes to the byte-level alphabet."""
    from tokenizers import Regex, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in SPLITS)
    if pre in SPLITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated"), byte_level])
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if pre in ("gpt-2", "default"):
        return byte_level
    known = ", ".join(["default", "gpt-2", "smollm", *SPLITS])
    raise ValueError(f"GGUF pre-tokenizer {pre!r} is not supported, only {known}")


def _added_bos_token_id(metadata: Mapping[str, Any]) -> int | None:
    """The id to put before every text; llama.cpp does so for Llama 3 unless told otherwise."""
    if metadata.get("tokenizer.ggml.add_eos_token", False):
        raise ValueError("GGUF tokenizer adds an end-of-text token after every prompt (add_eos_token), not supported")
    if not metadata.get("tokenizer.ggml.add_bos_token", metadata.get("tokenizer.ggml.pre") == "llama-bpe"):
        return None
    if (bos_token_id := metadata.get("tokenizer.ggml.bos_token_id")) is None:
        raise ValueError("GGUF tokenizer adds a BOS token but has no tokenizer.ggml.bos_token_id")
    return bos_token_id


def _read_pairs(data: mmap.mmap) -> dict[str, Any]:
    """Version, number of tensors, number of pairs, then the pairs."""
    version, _, num_pairs = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version}; versions 2 and 3 (little-endian) are supported")
    metadata, offset = {}, 24
    for _ in range(num_pairs):
        (key,), offset = _read_strings(data, offset, 1)
        (value_type,) = struct.unpack_from("<I", data, offset)
        metadata[key], offset = _read_value(data, offset + 4, value_type)
    return metadata


def _read_strings(data: mmap.mmap, offset: int, count: int) -> tuple[list[str], int]:
    """`count` times: byte length, then UTF-8. One loop, since a vocabulary has 100k of them."""
    strings = []
    for _ in range(count):
        start = offset + 8
        offset = start + int.from_bytes(data[offset:start], "little")
        strings.append(data[start:offset].decode("utf-8"))
    if offset > len(data):
        raise ValueError(f"GGUF metadata is cut short: {len(data)} bytes, at least {offset} expected")
    return strings, offset


def _read_value(data: mmap.mmap, offset: int, value_type: int) -> tuple[Any, int]:
    """The value and the offset after it."""
    if value_type == STRING:
        (text,), offset = _read_strings(data, offset, 1)
        return text, offset
    if value_type in SCALARS:
        layout = struct.Struct("<" + SCALARS[value_type])
        return layout.unpack_from(data, offset)[0], offset + layout.size
    if value_type != ARRAY:
        raise ValueError(f"GGUF metadata has the unknown value type {value_type} at byte {offset}")
    item_type, length = struct.unpack_from("<IQ", data, offset)
    offset += 12
    if item_type == STRING:
        return _read_strings(data, offset, length)
    if item_type in SCALARS:
        layout = struct.Struct(f"<{length}{SCALARS[item_type]}")
        return list(layout.unpack_from(data, offset)), offset + layout.size
    items = []
    for _ in range(length):
        item, offset = _read_value(data, offset, item_type)
        items.append(item)
    return items, offset
