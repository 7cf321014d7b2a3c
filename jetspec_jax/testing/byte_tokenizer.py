"""A tokenizer without files: one id per UTF-8 byte. Tests can split any character at any byte."""

from collections.abc import Mapping, Sequence
from typing import Any

NUM_BYTES = 256


class ByteTokenizer:
    """Ids 0..255 are bytes, 256 is BOS, 257 is EOS; satisfies `jetspec_jax.text.Tokenizer`."""

    def __init__(self, *, add_bos: bool = False):
        """With `add_bos`, `encode` begins with BOS."""
        self.vocab_size = NUM_BYTES + 2
        self.bos_token_id: int | None = NUM_BYTES
        self.eos_token_ids: tuple[int, ...] = (NUM_BYTES + 1,)
        self.add_bos = add_bos

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """`"né"` -> `[110, 195, 169]`."""
        bos = [NUM_BYTES] if self.add_bos and add_special_tokens else []
        return bos + list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Like `bytes.decode(errors="replace")`; BOS and EOS give no text, or `<bos>` and `<eos>`."""
        if (lowest := min(ids, default=0)) < 0:
            raise ValueError(f"token id {lowest} is negative")
        special = {} if skip_special_tokens else {NUM_BYTES: b"<bos>", NUM_BYTES + 1: b"<eos>"}
        data = b"".join(bytes([i]) if i < NUM_BYTES else special.get(i, b"") for i in ids)
        return data.decode("utf-8", errors="replace")

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> list[int]:
        """Lines `role: content`, then `assistant: ` to be continued."""
        if template_kwargs:
            raise ValueError(f"the chat template does not use {', '.join(sorted(template_kwargs))}")
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + ("assistant: " if add_generation_prompt else ""))

    def is_special(self, token_id: int) -> bool:
        """BOS and EOS."""
        return token_id in (NUM_BYTES, NUM_BYTES + 1)
