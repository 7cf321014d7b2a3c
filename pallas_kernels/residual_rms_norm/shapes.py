"""Realistic shapes of the residual stream, for tests and benchmarks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """T rows of a residual stream of width D."""

    num_rows: int
    width: int


SHAPES = {
    "qwen3-8b-step": Rows(1, 4096),
    "qwen3-8b-verify": Rows(17, 4096),
    "qwen3-8b-refresh": Rows(128, 4096),
    "smollm2-135m-verify": Rows(17, 576),
}
