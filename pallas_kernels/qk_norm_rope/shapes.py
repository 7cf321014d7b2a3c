"""Realistic shapes of the fused projection, for tests and benchmarks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Projection:
    """Rows of B requests, their heads, and the cache that they go into.

    Attributes:
        batch, num_rows: B and T.
        num_heads, num_kv_heads, head_dim: N, K and H.
        has_norm: whether queries and keys are normalised.
        capacity: S, slots of the cache; None for rows that keep their keys to themselves.
    """

    batch: int
    num_rows: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_norm: bool
    capacity: int | None


SHAPES = {
    "qwen3-8b-step": Projection(1, 1, 32, 8, 128, True, 2048),
    "qwen3-8b-verify": Projection(1, 17, 32, 8, 128, True, 2048),
    "qwen3-8b-verify-batch": Projection(4, 17, 32, 8, 128, True, 2048),
    "qwen3-8b-refresh": Projection(1, 128, 32, 8, 128, True, None),
    "smollm2-135m-verify": Projection(1, 17, 9, 3, 64, False, 2048),
}
