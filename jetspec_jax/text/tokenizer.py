"""Tokenizers: the protocol the engine uses, and one implementation over the Hugging Face `tokenizers` library.

`load_tokenizer` reads a checkpoint folder (through transformers) or a GGUF file (`gguf_vocabulary.py`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jinja2

from jetspec_jax.text.chat_template import check_template_kwargs, render_template
from jetspec_jax.text.gguf_vocabulary import build_backend

NO_TEMPLATE = "the tokenizer has no chat template; give the prompt as text or token ids"

GGUF_SPECIAL_KEYS = {  # name in chat templates -> name in `tokenizer.ggml.<name>_token_id`
    "bos_token": "bos",
    "eos_token": "eos",
    "eot_token": "eot",
    "eom_token": "eom",
    "unk_token": "unknown",
    "pad_token": "padding",
}


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back.

    Appending ids to a list may change only the end of its decoded text: up to three U+FFFD that stand for a character
    whose bytes are not all there yet. Streaming depends on this (`streaming.py`).

    Attributes:
        vocab_size: largest valid id + 1. With the ids {0..49, 60} it is 61, and 55 is below it but unknown.
        bos_token_id: beginning of text, `None` if there is none. `encode` need not add it.
        eos_token_ids: every id that ends a text, the tokenizer's own first.
    """

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; `ValueError` if it holds a lone surrogate."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`. Unknown ids (padded vocabulary) give no text; a negative id is a `ValueError`."""
        ...

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> list[int]:
        """Token ids of a chat; `ValueError` without a template or for an argument that the template does not use."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether `decode` leaves this id out by default."""
        ...


class HFTokenizer:
    """A `Tokenizer` over a `tokenizers.Tokenizer` or a fast transformers tokenizer.

    Decoding differs from transformers in two points, both needed so that a stream equals the whole text: spaces before
    punctuation are never cleaned up, and invalid bytes of a byte-fallback vocabulary become one U+FFFD per cut
    character instead of destroying the valid characters next to them.
    """

    def __init__(
        self,
        backend: Any,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: tuple[int, ...] = (),
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ):
        """Wrap `backend`.

        Args:
            backend: `tokenizers.Tokenizer`, or a fast transformers tokenizer, which knows its special tokens and
                template itself; then only `eos_token_ids` may be given, in addition to its own.
            bos_token_id: see `Tokenizer`.
            eos_token_ids: see `Tokenizer`.
            special_tokens: what the chat template sees, for example `{"bos_token": "<s>"}`.
            chat_template: Jinja source.
        """
        self._transformers = backend if hasattr(backend, "apply_chat_template") else None
        if self._transformers is not None:
            if getattr(backend, "backend_tokenizer", None) is None:
                raise ValueError(f"{type(backend).__name__} is not a fast tokenizer (it has no tokenizers backend)")
            if bos_token_id is not None or special_tokens is not None or chat_template is not None:
                raise ValueError(f"{type(backend).__name__} has its own BOS, special tokens and chat template")
            bos_token_id = backend.bos_token_id
            own = () if backend.eos_token_id is None else (backend.eos_token_id,)
            eos_token_ids = tuple(dict.fromkeys((*own, *eos_token_ids)))
            backend = backend.backend_tokenizer
        backend.no_truncation()  # a tokenizer.json may ask for both; a prompt must not be cut silently
        backend.no_padding()
        self._backend = backend
        self._special_ids = frozenset(i for i, t in backend.get_added_tokens_decoder().items() if t.special)
        self._special_tokens = dict(special_tokens or {})
        self._chat_template = chat_template
        self._fallback_bytes = _fallback_bytes(backend)
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """See `Tokenizer.encode`."""
        check_text(text, "text")
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `Tokenizer.decode`."""
        if (lowest := min(ids, default=0)) < 0:
            raise ValueError(f"token id {lowest} is negative")
        known = [i for i in ids if i < self.vocab_size]
        if self._fallback_bytes and not self._fallback_bytes.keys().isdisjoint(known):
            return self._decode_with_fallback(known, skip_special_tokens)
        return self._backend.decode(known, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> list[int]:
        """See `Tokenizer.apply_chat_template`."""
        if self._transformers is not None:
            return self._apply_transformers_template(messages, add_generation_prompt, template_kwargs)
        if self._chat_template is None:
            raise ValueError(NO_TEMPLATE)
        text = render_template(
            self._chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self._special_tokens,
            template_kwargs=template_kwargs,
        )
        return self.encode(text, add_special_tokens=False)

    def is_special(self, token_id: int) -> bool:
        """See `Tokenizer.is_special`."""
        return token_id in self._special_ids

    def _apply_transformers_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, template_kwargs: dict[str, Any]
    ) -> list[int]:
        """transformers renders; only the check for unused arguments is ours."""
        if not self._transformers.chat_template:
            raise ValueError(NO_TEMPLATE)
        source = self._transformers.get_chat_template(tools=template_kwargs.get("tools"))
        check_template_kwargs(source, template_kwargs)
        try:
            text = self._transformers.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **template_kwargs,
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refused the messages: {error}") from error
        return self.encode(text, add_special_tokens=False)

    def _decode_with_fallback(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Decode where some tokens are single bytes (`<0xE6>`).

        The library turns a whole run of them into U+FFFD if one byte is wrong. Here a wrong byte only ends the run:
        `<0xC3> <0xA9> <0xFF>` -> `<0xC3> <0xA9>` + U+FFFD, text "é\ufffd".
        """
        if skip_special_tokens:
            ids = [i for i in ids if i not in self._special_ids]
        tokens: list[str] = []
        for is_byte, run in groupby(ids, key=self._fallback_bytes.__contains__):
            if is_byte:
                tokens += _valid_runs(bytes(self._fallback_bytes[i] for i in run))
            else:
                tokens += [token for i in run if (token := self._backend.id_to_token(i)) is not None]
        return self._backend.decoder.decode(tokens)


class NoTokenizer:
    """Stands in where a model has no tokenizer: only token ids can be prompts."""

    vocab_size: int = 0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Nothing, for a prompt without text."""
        if text:
            raise ValueError("text prompts need a tokenizer, and this model has none: give token ids")
        return []

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Never asked for: without a tokenizer there is no text."""
        raise NotImplementedError("no tokenizer")

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> list[int]:
        """Refused."""
        raise ValueError("chat prompts need a tokenizer, and this model has none: give token ids")

    def is_special(self, token_id: int) -> bool:
        """Never asked for."""
        raise NotImplementedError("no tokenizer")


def load_tokenizer(path: Path) -> HFTokenizer:
    """The tokenizer of a checkpoint folder (`tokenizer.json`, `tokenizer_config.json`) or of a `.gguf` file.

    End-of-text ids of a folder are the tokenizer's own and those in `generation_config.json`, where chat models list
    more than one.
    """
    from jetspec_jax.checkpoints.conversion import gguf_source
    from jetspec_jax.checkpoints.gguf_header import read_gguf_header

    if path.is_dir() and (source := gguf_source(path)) is not None:
        path = source  # a converted folder: the tokenizer stayed in the file it came from
    if path.is_file() and path.suffix == ".gguf":
        return _from_gguf_metadata(read_gguf_header(path).metadata)
    if not (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        raise ValueError(f"{path} is neither a .gguf file nor a folder with tokenizer.json or tokenizer_config.json")
    import transformers

    backend = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    eos_token_ids: Any = None
    if (generation_config := path / "generation_config.json").is_file():
        eos_token_ids = json.loads(generation_config.read_text(encoding="utf-8")).get("eos_token_id")
    if eos_token_ids is None:
        eos_token_ids = []
    elif isinstance(eos_token_ids, int):
        eos_token_ids = [eos_token_ids]
    return HFTokenizer(backend, eos_token_ids=tuple(eos_token_ids))


def check_text(text: str, name: str) -> None:
    """Refuse lone surrogates: they are no Unicode text, and no tokenizer can encode them."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(f"{name} has a lone surrogate U+{code:04X} at character {error.start}") from None


def _from_gguf_metadata(metadata: Mapping[str, Any]) -> HFTokenizer:
    """Build the vocabulary and read the special tokens next to it; absent ids are absent keys."""
    ids = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in GGUF_SPECIAL_KEYS.items()}
    tokens = metadata["tokenizer.ggml.tokens"]
    end_ids = (ids["eos_token"], ids["eot_token"], ids["eom_token"])
    return HFTokenizer(
        build_backend(metadata),
        bos_token_id=ids["bos_token"],
        eos_token_ids=tuple(dict.fromkeys(i for i in end_ids if i is not None)),
        special_tokens={role: tokens[i] for role, i in ids.items() if i is not None},
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _fallback_bytes(backend: Any) -> dict[int, int]:
    """Token id -> byte value, for vocabularies whose decoder joins `<0x41>` tokens to characters."""
    if backend.decoder is None or backend.decoder.decode(["<0x41>"]) != "A":
        return {}
    ids = {backend.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
    return {token_id: byte for token_id, byte in ids.items() if token_id is not None}


def _valid_runs(run: bytes) -> Iterator[str]:
    """Byte tokens of the valid UTF-8 in `run`, with a U+FFFD token for each cut or invalid character."""
    while run:
        try:
            run.decode("utf-8")
            valid, bad_end = len(run), len(run)
        except UnicodeDecodeError as error:
            valid, bad_end = error.start, error.end
        yield from (f"<0x{byte:02X}>" for byte in run[:valid])
        if valid < bad_end:
            yield "\ufffd"
        run = run[bad_end:]
