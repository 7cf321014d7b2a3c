"""Realistic shapes of attention over a cache, for tests and benchmarks."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclass(frozen=True)
class Blocks:
    """R blocks of T rows for each of B requests.

    Attributes:
        batch, num_blocks, num_rows: B, R and T.
        num_own: U; 0 for rows whose keys are in the cache already (`cache_attention`).
        num_heads, num_kv_heads, head_dim: N, K and H.
        capacity: S.
    """

    batch: int
    num_blocks: int
    num_rows: int
    num_own: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    capacity: int

    def arguments(self, dtype: DTypeLike) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes of the operation's arguments, in their order."""
        q = jax.ShapeDtypeStruct((self.batch, self.num_blocks, self.num_rows, self.num_heads, self.head_dim), dtype)
        context = jax.ShapeDtypeStruct((self.batch, self.num_kv_heads, self.capacity, self.head_dim), dtype)
        if not self.num_own:
            q = jax.ShapeDtypeStruct((self.batch, self.num_rows, self.num_heads, self.head_dim), dtype)
            return q, context, context, jax.ShapeDtypeStruct((self.batch, self.num_rows), jnp.int32)
        own = jax.ShapeDtypeStruct((*q.shape[:2], self.num_kv_heads, self.num_own, self.head_dim), dtype)
        mask = jax.ShapeDtypeStruct((*q.shape[:3], self.num_own), jnp.bool)
        return q, context, context, jax.ShapeDtypeStruct(q.shape[:2], jnp.int32), own, own, mask

    def bytes_moved(self, context_len: int, itemsize: int = 2) -> int:
        """Bytes that must be read or written whatever the kernel: queries, outputs, own keys, and the context once.

        Args:
            context_len: slots that the longest block sees.
            itemsize: bytes of an element.
        """
        queries = self.num_blocks * self.num_rows * self.num_heads
        keys = self.num_kv_heads * (context_len + self.num_blocks * self.num_own)
        return self.batch * self.head_dim * itemsize * 2 * (queries + keys)


def _qwen3_8b(batch: int, num_blocks: int, num_rows: int, num_own: int) -> Blocks:
    return Blocks(batch, num_blocks, num_rows, num_own, num_heads=32, num_kv_heads=8, head_dim=128, capacity=2048)


def _smollm2_135m(batch: int, num_blocks: int, num_rows: int, num_own: int) -> Blocks:
    return Blocks(batch, num_blocks, num_rows, num_own, num_heads=9, num_kv_heads=3, head_dim=64, capacity=2048)


SHAPES = {
    "qwen3-8b-step": _qwen3_8b(1, 1, 1, 0),
    "qwen3-8b-verify": _qwen3_8b(1, 1, 17, 0),
    "qwen3-8b-verify-16": _qwen3_8b(1, 1, 16, 0),
    "qwen3-8b-verify-batch": _qwen3_8b(4, 1, 17, 0),
    "qwen3-8b-verify-own": _qwen3_8b(1, 1, 17, 17),
    "qwen3-8b-draft": _qwen3_8b(1, 1, 16, 16),
    "qwen3-8b-draft-refreshed": _qwen3_8b(1, 1, 16, 32),
    "qwen3-8b-foresight-4": _qwen3_8b(1, 4, 16, 32),
    "qwen3-8b-foresight-8": _qwen3_8b(1, 8, 16, 32),
    "qwen3-8b-refresh-8": _qwen3_8b(1, 8, 17, 17),
    "qwen3-8b-catch-up": _qwen3_8b(1, 1, 34, 34),
    "smollm2-135m-step": _smollm2_135m(1, 1, 1, 0),
    "smollm2-135m-verify": _smollm2_135m(1, 1, 17, 0),
    "smollm2-135m-draft": _smollm2_135m(1, 1, 16, 16),
    "smollm2-135m-foresight-8": _smollm2_135m(1, 8, 16, 32),
    "smollm2-135m-catch-up": _smollm2_135m(1, 1, 34, 34),
}
