"""Tile sizes of the kernel: the default, what a sweep may try, and the bytes that every choice must move."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

# Of an H200's SM. A block has one warpgroup; shared memory says how many share an SM, registers allow three up to 72
# rows (154 a thread with an int8 head and 64).
SMEM_PER_SM = 228 * 1024
SMEM_PER_CTA = 227 * 1024
SMEM_RESERVED = 1024  # by the driver, for each block
SMEM_OF_BARRIERS = 512  # at most, all barriers of a block

# That an SM must have asked for to draw its share of 4 TB/s at a latency of 1.2 us; with less, a sweep need not bother.
BYTES_IN_FLIGHT = 36 * 1024

# Fewer are XLA's. Measured at one row (H200, Qwen3-8B's bf16 head): 272 us with its matrix-vector product, 300 here.
MIN_ROWS = 9
MAX_ROWS = 136  # 8 requests of 17 rows; more than a wgmma's N of 256 could not be
MAX_TILE_V = 256  # rows of a TMA box
INT8_PART = 64  # inputs of an int8 head that are in registers as bf16, twice
# Registers of a thread's accumulators. Compiled for sm_90a, 192 leave room for the epilogue and for two parts of an
# int8 head: nothing is spilled (236 registers at the most).
MAX_ACCUMULATORS = 192


@dataclass(frozen=True, kw_only=True)
class HeadDrawConfig:
    """How the head is cut up.

    Attributes:
        tile_v: vocabulary entries of a block, a multiple of 64: M of the products.
        tile_k: width of a pipeline step, a multiple of 32 that divides D.
        stages: steps in shared memory, at least 2.
        chunk: rows (tokens) that the epilogue treats at once, a multiple of 8 that divides the padded number of rows.
    """

    tile_v: int = 128
    tile_k: int = 64
    stages: int = 4
    chunk: int = 8

    def smem_bytes(self, num_rows: int, dtype: DTypeLike) -> int:
        """Shared memory of a block; `dtype` is that of the head."""
        rows = padded(num_rows)
        pipeline = self.stages * _stage_bytes(self.tile_v, self.tile_k, num_rows, dtype)
        scores, partials = self.tile_v * rows * 4, 4 * rows * 4
        reduction = self.chunk * 128
        return max(pipeline, scores + partials + reduction) + SMEM_OF_BARRIERS

    def check(self, num_rows: int, width: int, vocab_size: int, dtype: DTypeLike) -> None:
        """Whether the kernel can be cut up like this.

        Raises:
            NotImplementedError: it cannot.
        """
        rows = padded(num_rows)
        shape = f"T={num_rows}, D={width}, V={vocab_size}"
        if not 0 < num_rows <= MAX_ROWS:
            raise NotImplementedError(f"1 to {MAX_ROWS} rows, got {shape}")
        if vocab_size % 64 or vocab_size < self.tile_v:
            raise NotImplementedError(f"V must be a multiple of 64 and at least {self.tile_v=}, got {shape}")
        if self.tile_v % 64 or not 0 < self.tile_v <= MAX_TILE_V:
            raise NotImplementedError(f"tile_v must be 64, 128, 192 or {MAX_TILE_V}, got {self.tile_v}")
        if dtype == jnp.int8 and self.tile_k > INT8_PART and self.tile_k % INT8_PART:
            raise NotImplementedError(f"an int8 head is read {INT8_PART} inputs at a time, got {self.tile_k=}")
        if self.tile_k % 32 or width % self.tile_k:
            raise NotImplementedError(f"tile_k must be a multiple of 32 and divide D, got {self.tile_k} and {shape}")
        if self.stages < 2:
            raise NotImplementedError(f"at least 2 stages, got {self.stages}")
        if self.chunk % 8 or rows % self.chunk:
            raise NotImplementedError(f"chunk must be a multiple of 8 and divide {rows} padded rows, got {self.chunk}")
        if self.tile_v * rows // 128 > MAX_ACCUMULATORS:
            raise NotImplementedError(f"more than {MAX_ACCUMULATORS} accumulators a thread: {self}, {rows} padded rows")
        if (needed := self.smem_bytes(num_rows, dtype)) > SMEM_PER_CTA:
            raise NotImplementedError(f"{needed} bytes of shared memory, a block has {SMEM_PER_CTA}: {self}, {shape}")


def padded(num_rows: int) -> int:
    """Rows as the kernel sees them: N of a product is a multiple of 8."""
    return -(-num_rows // 8) * 8


def default_config(num_rows: int, width: int, vocab_size: int, dtype: DTypeLike) -> HeadDrawConfig:
    """Two blocks an SM, one of which streams while the other draws; as deep as shared memory allows.

    Tiles of 128 cut Qwen3's vocabulary into 1187, one less than 9 for each of 132 SMs. Steps have 128 bytes of a row,
    and of an int8 head, where each block waits for its conversions, three share an SM (H200, Qwen3-8B, 64 rows: three
    284 us, two 295, two with steps of 64 bytes 331).
    """
    tile_v = 64 if vocab_size < 128 else 128
    tile_k = next((size for size in (128 // jnp.dtype(dtype).itemsize, 64) if width % size == 0), 32)
    default = HeadDrawConfig(tile_v=tile_v, tile_k=tile_k, stages=_stages(tile_v, tile_k, num_rows, width, dtype, 2))
    if dtype != jnp.int8:
        return default
    three = replace(default, stages=_stages(tile_v, tile_k, num_rows, width, dtype, 3))
    if 3 * (three.smem_bytes(num_rows, dtype) + SMEM_RESERVED) <= SMEM_PER_SM:
        return three
    tile_k = min(tile_k, 64)  # with many rows smaller steps keep more of the head in flight
    return replace(default, tile_k=tile_k, stages=_stages(tile_v, tile_k, num_rows, width, dtype, 2))


def candidate_configs(num_rows: int, width: int, vocab_size: int, dtype: DTypeLike) -> list[HeadDrawConfig]:
    """What a sweep may try: the default, its wider chunks, and all tiles that keep enough of the head in flight."""
    default = default_config(num_rows, width, vocab_size, dtype)
    tried = [replace(default, chunk=chunk) for chunk in (8, 16, 24, 32)]
    for tile_v, tile_k, num_ctas in product((64, 128, 192, 256), (32, 64, 128), (1, 2, 3, 4)):
        stages = _stages(tile_v, tile_k, num_rows, width, dtype, num_ctas)
        in_flight = num_ctas * (stages - 1) * tile_v * tile_k * jnp.dtype(dtype).itemsize
        if in_flight >= BYTES_IN_FLIGHT or stages * tile_k >= width:
            tried.append(HeadDrawConfig(tile_v=tile_v, tile_k=tile_k, stages=stages))
    return [config for config in dict.fromkeys(tried) if _fits(config, num_rows, width, vocab_size, dtype)]


def _fits(config: HeadDrawConfig, *shape: Any) -> bool:
    try:
        config.check(*shape)
    except NotImplementedError:
        return False
    return True


def _stages(tile_v: int, tile_k: int, num_rows: int, width: int, dtype: DTypeLike, num_ctas: int) -> int:
    """Stages that leave room for so many blocks an SM; two at least."""
    available = min(SMEM_PER_SM // num_ctas - SMEM_RESERVED, SMEM_PER_CTA) - SMEM_OF_BARRIERS
    return max(2, min(available // _stage_bytes(tile_v, tile_k, num_rows, dtype), width // tile_k))


def _stage_bytes(tile_v: int, tile_k: int, num_rows: int, dtype: DTypeLike) -> int:
    return tile_k * (tile_v * jnp.dtype(dtype).itemsize + padded(num_rows) * row_dtype(dtype).itemsize)


def row_dtype(head_dtype: DTypeLike) -> jnp.dtype:
    """Of the rows that a head is multiplied with: fp8 with fp8, otherwise bf16.

    Raises:
        NotImplementedError: there is no kernel for this head.
    """
    if head_dtype not in (jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn):
        raise NotImplementedError(f"a head is bfloat16, int8 or float8_e4m3fn, got {jnp.dtype(head_dtype)}")
    return jnp.dtype(head_dtype if head_dtype == jnp.float8_e4m3fn else jnp.bfloat16)


def bytes_moved(num_rows: int, width: int, vocab_size: int, dtype: DTypeLike) -> int:
    """Bytes that must come from memory: the head once (its scales, if any) and the rows once; results are small."""
    entry = width * jnp.dtype(dtype).itemsize + 4 * (dtype != jnp.bfloat16)  # and its scale
    return vocab_size * entry + num_rows * width * row_dtype(dtype).itemsize
