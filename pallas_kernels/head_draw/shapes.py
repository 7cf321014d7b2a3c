"""Realistic shapes of the language-model head, for tests and benchmarks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """T rows of width D, drawn from a vocabulary of V."""

    num_rows: int
    width: int
    vocab_size: int


SHAPES = {
    "qwen3-8b-step": Rows(1, 4096, 151936),
    "qwen3-8b-verify": Rows(17, 4096, 151936),
    "qwen3-8b-draft": Rows(16, 4096, 151936),
    "qwen3-8b-draft-r4": Rows(64, 4096, 151936),
    "qwen3-8b-draft-r8": Rows(128, 4096, 151936),
    "smollm2-135m-verify": Rows(17, 576, 49152),
    "smollm2-135m-draft-r8": Rows(128, 576, 49152),
}
