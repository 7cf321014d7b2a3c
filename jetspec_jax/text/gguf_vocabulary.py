"""The vocabulary in a GGUF file's metadata, as a `tokenizers.Tokenizer`.

Only byte-level BPE (`tokenizer.ggml.model` "gpt2") with a known pre-tokenizer; anything else is refused, since a wrong
split gives wrong ids without an error. The metadata comes from `checkpoints/gguf_header.py`.
"""

from collections.abc import Mapping
from typing import Any

# Token types (tokenizer.ggml.token_type). UNUSED entries pad the vocabulary and stay unknown to the tokenizer.
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5

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
