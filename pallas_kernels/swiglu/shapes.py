"""Realistic shapes of the MLP's inner rows, for tests and benchmarks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """T rows of gate and up, each of width F."""

    num_rows: int
    width: int


SHAPES = {
    "qwen3-8b-step": Rows(1, 12288),
    "qwen3-8b-verify": Rows(17, 12288),
    "qwen3-8b-refresh": Rows(128, 12288),
    "smollm2-135m-verify": Rows(17, 1536),
}
