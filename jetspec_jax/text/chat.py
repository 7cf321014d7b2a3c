"""Prompts: plain text, token ids or chat messages, checked and turned into token ids.

A prompt arrives from a user, so the functions that take one accept any object and answer with a `ValueError` that
names what is wrong. Whether a prompt fits the context is decided elsewhere.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from jetspec_jax.text.tokenizer import Tokenizer, check_text

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]

ROLES = ("system", "user", "assistant", "tool")


def is_batch(prompts: Any) -> bool:
    """Whether `prompts` is a list of prompts and not one prompt; `[]` could be either, so it is refused.

    `[1, 2]` -> one prompt, `[{"role": ...}]` -> one chat, `["a", "b"]`, `[[1, 2]]`, `[[{...}], "b"]` -> batches.
    """
    if isinstance(prompts, str) or not _is_list(prompts):
        return False
    if len(prompts) == 0:
        raise ValueError("empty prompt: [] holds no prompt; a batch with one empty prompt is [''] or [[]]")
    return isinstance(prompts[0], str) or _is_list(prompts[0])


def encode_prompt(
    tokenizer: Tokenizer,
    prompt: Any,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    vocab_size: int | None = None,
    name: str = "prompt",
) -> list[int]:
    """Token ids of one `Prompt`; never empty.

    Args:
        tokenizer: encodes text (with BOS if it adds one) and renders chat messages.
        prompt: a `Prompt`; anything else is refused.
        chat_template_kwargs: variables for the chat template; refused for a prompt that is not a chat.
        vocab_size: ids must be below it; `tokenizer.vocab_size` if not given.
        name: what error messages call this prompt, for example "prompt 3".
    """
    kwargs = dict(chat_template_kwargs or {})
    is_chat = _is_list(prompt) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
    if kwargs and not is_chat:
        raise ValueError(f"{name}: chat template arguments {sorted(kwargs)} given, but the prompt is not a chat")
    if isinstance(prompt, str):
        check_text(prompt, name)
        ids = tokenizer.encode(prompt)
    elif is_chat:
        if "messages" in kwargs:
            raise ValueError(f"{name}: 'messages' is not a chat template argument, the prompt holds the messages")
        ids = tokenizer.apply_chat_template(validate_messages(prompt), **kwargs)
    elif _is_list(prompt):
        # An empty list becomes one BOS token where the tokenizer adds one, like the empty string.
        ids = _check_ids(prompt, vocab_size or tokenizer.vocab_size, name) or tokenizer.encode("")
    else:
        raise ValueError(f"{name} must be text, a list of token ids or a list of messages, got {type(prompt).__name__}")
    if not ids:
        raise ValueError(f"{name} is empty: {prompt!r} gives no tokens and the tokenizer adds no BOS token")
    return ids


def validate_messages(messages: Any) -> list[Message]:
    """The messages as a list, or a `ValueError` that names the first bad one.

    `content` must be text; only an assistant message with `tool_calls` may go without.
    """
    if isinstance(messages, str) or not _is_list(messages):
        raise ValueError(f"messages must be a list of messages, got {type(messages).__name__}")
    if len(messages) == 0:
        raise ValueError("messages is empty; a chat needs at least one message")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise ValueError(f"{where} must be a mapping with 'role' and 'content', got {type(message).__name__}")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise ValueError(f"{where} has role {role!r}, expected one of {', '.join(ROLES)}")
        if content is None and role == "assistant" and message.get("tool_calls"):
            continue
        if content is None:
            raise ValueError(f"{where} (role {role!r}) has no content")
        if not isinstance(content, str):
            raise ValueError(f"{where} content must be text, got {type(content).__name__}")
        check_text(content, f"{where} content")
    return list(messages)


def _is_list(value: Any) -> bool:
    """A sequence that can hold ids, messages or prompts (text and bytes cannot)."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def _check_ids(ids: Sequence[Any], vocab_size: int, name: str) -> list[int]:
    """The ids as Python ints; `True` and `1.0` are refused although they equal 1."""
    checked = []
    for index, value in enumerate(ids):
        try:
            token_id = operator.index(value)
        except TypeError:
            token_id = None
        if token_id is None or isinstance(value, bool):
            raise ValueError(f"{name}[{index}] must be a token id, got {value!r} ({type(value).__name__})")
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"{name}[{index}] is token id {token_id}, outside 0..{vocab_size - 1}")
        checked.append(token_id)
    return checked
