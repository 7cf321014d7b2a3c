"""Tokenised prompts in one file: made where the sources are installed, answered where the GPU is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jetspec_jax.text.tokenizer import Tokenizer
from train.prompts.prompt import Prompt


@dataclass(frozen=True)
class PromptSet:
    """Prompts with the chat template applied.

    Attributes:
        token_ids: of each prompt.
        sources: where each is from.
    """

    token_ids: list[list[int]]
    sources: list[str]

    @classmethod
    def encode(cls, prompts: Sequence[Prompt], tokenizer: Tokenizer, *, max_len: int) -> "PromptSet":
        """One user turn each; prompts of more than `max_len` tokens are left out."""
        token_ids, sources = [], []
        for prompt in prompts:
            ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}])
            if len(ids) <= max_len:
                token_ids.append(ids)
                sources.append(prompt.source)
        return cls(token_ids, sources)

    def save(self, path: Path) -> None:
        """Writes the set as one `.npz`."""
        names = sorted(set(self.sources))
        lengths = [len(ids) for ids in self.token_ids]
        flat = np.concatenate([np.asarray(ids, np.int32) for ids in self.token_ids])
        flat = flat.astype(np.uint16) if flat.max(initial=0) < 1 << 16 else flat
        numbers = {name: i for i, name in enumerate(names)}
        np.savez_compressed(
            path,
            tokens=flat,
            lengths=np.asarray(lengths, np.int32),
            sources=np.asarray([numbers[source] for source in self.sources], np.int16),
            names=np.asarray(names),
        )

    @classmethod
    def load(cls, path: Path) -> "PromptSet":
        """Reads what `save` wrote."""
        with np.load(path) as arrays:
            ends = np.cumsum(arrays["lengths"])[:-1]
            token_ids = [part.tolist() for part in np.split(arrays["tokens"].astype(np.int32), ends)]
            return cls(token_ids, arrays["names"][arrays["sources"]].tolist())
