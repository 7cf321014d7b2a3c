"""Per-head norm, RoPE and cache write of few rows, Mosaic GPU: what stands between the projection and attention.

A block of one warpgroup does a few heads of one row, a warp a head. A lane holds the same positions of the two halves
of its head, so a rotation never leaves the thread and a norm never leaves the warp; no shared memory.

* Moved: (N + 2K) H elements a row read, the same written, and 2 K H more into the caches; Qwen3-8B, 17 rows, bf16:
  0.5 MB, 0.13 us at 3.8 TB/s. What counts is the latency, and that it is one launch for five or more.
* FLOPs: about 8 an element.
* Grid: (B, T, (N + 2K) / heads_per_block).
* The caches are refs that are written in place: XLA aliases them, and copies nothing if the caller donates them.
* Limits: bf16, fp16 or fp32, caches and scales alike; fp32 angles; H 64, 128 or 256; a block's heads divide N and K.
  Uses nothing that only Hopper has, so Blackwell runs it too.
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

WARPS = 4  # of a warpgroup
LANES = 32  # of a warp


@dataclass(frozen=True)
class QKNormRopeConfig:
    """How the heads are spread over blocks.

    Attributes:
        heads_per_block: divides N and K. A multiple of 4 gives each warp its own heads; else every warp does them all.
    """

    heads_per_block: int

    @classmethod
    def for_heads(cls, num_heads: int, num_kv_heads: int) -> "QKNormRopeConfig":
        """One head a warp if the heads allow, else one a block: many blocks, each short."""
        return cls(WARPS if math.gcd(num_heads, num_kv_heads) % WARPS == 0 else 1)

    def layout(self, half: int):
        """Where the elements of `[heads_per_block, 2 * half]` live; the pattern repeats after `half`."""
        # Two elements at least: loads under 4 bytes a thread waste the memory's transactions.
        vector_len = max(half // LANES, 2)
        lanes = half // vector_len
        if self.heads_per_block % WARPS == 0:
            tile_heads, warps = WARPS, -3
        else:
            tile_heads, warps = 1, plgpu.Replicated(WARPS)
        return plgpu.Layout.TILED(
            plgpu.Tiling(((tile_heads, half), (vector_len,))),
            warp_dims=(warps,),
            lane_dims=(-2,) if lanes == LANES else (plgpu.Replicated(LANES // lanes), -2),
            vector_dim=-1,
        )


def qk_norm_rope(
    qkv: Float[Array, "B T heads"],
    q_scale: Float[Array, "H"] | None,
    k_scale: Float[Array, "H"] | None,
    cos: Float[Array, "B T half"],
    sin: Float[Array, "B T half"],
    keys: Float[Array, "B K S H"] | None,
    values: Float[Array, "B K S H"] | None,
    start: Int[Array, "B"] | None,
    *,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
    config: QKNormRopeConfig | None = None,
) -> tuple[
    Float[Array, "B T N H"],
    Float[Array, "B T K H"],
    Float[Array, "B T K H"],
    Float[Array, "B K S H"] | None,
    Float[Array, "B K S H"] | None,
]:
    """One launch of what `reference.py` defines, rounded where it rounds; the caches are updated in place if donated.

    Args:
        config: None for the default.

    Raises:
        NotImplementedError: outside the limits above.
        ValueError: a norm or a cache of one side only.
    """
    if (q_scale is None) != (k_scale is None) or not (keys is None) == (values is None) == (start is None):
        raise ValueError("q_scale and k_scale go together, and so do keys, values and start")
    batch, rows, width = qkv.shape
    heads = num_heads + 2 * num_kv_heads
    head_dim = width // heads
    config = config or QKNormRopeConfig.for_heads(num_heads, num_kv_heads)
    _check_limits(config, num_heads, num_kv_heads, head_dim, qkv, (q_scale, k_scale, keys, values), (cos, sin))
    arrays = qkv.reshape(batch, rows, heads, head_dim), q_scale, k_scale, cos, sin, keys, values, start
    return _launch(*arrays, eps=eps, num_heads=num_heads, num_kv_heads=num_kv_heads, config=config)


@partial(jax.jit, static_argnames=("eps", "num_heads", "num_kv_heads", "config"))
def _launch(qkv, q_scale, k_scale, cos, sin, keys, values, start, *, eps, num_heads, num_kv_heads, config):
    """Runs the grid; a program with many layers lowers each shape once."""
    batch, rows, heads, head_dim = qkv.shape
    step, half = config.heads_per_block, head_dim // 2
    layout = config.layout(half)
    # "Optimized" is about shared memory; jax 0.11 refuses global memory with it.
    load = partial(plgpu.load, optimized=False)

    def qk_norm_rope_kernel(qkv_ref, cos_ref, sin_ref, scales, cache, q_ref, k_ref, v_ref):
        b, t, block = (jax.lax.axis_index(name) for name in ("b", "t", "block"))
        x = load(qkv_ref.at[b, t, pl.ds(block * step, step)], layout=layout)  # [step, H]
        q_scale_ref, k_scale_ref = scales or (None, None)
        start_ref, keys_ref, values_ref = cache or (None, None, None)
        if cache is not None:
            # Loaded first, so that no store waits for it. As `dynamic_update_slice` does, rows that do not fit are
            # moved down.
            slot = jnp.clip(start_ref[b], 0, keys_ref.shape[2] - rows) + t

        def rotated(scale_ref):
            y = x if scale_ref is None else _norm(x, load(scale_ref, layout=layout.reduce(0)), eps)
            angles = (load(ref.at[b, t], layout=layout.reduce(0)) for ref in (cos_ref, sin_ref))
            return _rotate(y, *angles)

        def write(out_ref, cache_ref, first_block, value):
            heads = pl.ds((block - first_block) * step, step)
            out_ref[b, t, heads] = value
            if cache_ref is not None:
                cache_ref[b, heads, slot] = value

        first_key, first_value = num_heads // step, (num_heads + num_kv_heads) // step

        @pl.when(block < first_key)
        def _queries():
            write(q_ref, None, 0, rotated(q_scale_ref))

        @pl.when((block >= first_key) & (block < first_value))
        def _keys():
            write(k_ref, keys_ref, first_key, rotated(k_scale_ref))

        @pl.when(block >= first_value)
        def _values():
            write(v_ref, values_ref, first_value, _finite(x))

    q = jax.ShapeDtypeStruct((batch, rows, num_heads, head_dim), qkv.dtype)
    kv = jax.ShapeDtypeStruct((batch, rows, num_kv_heads, head_dim), qkv.dtype)
    call = plgpu.kernel(
        qk_norm_rope_kernel,
        out_type=(q, kv, kv),
        grid=(batch, rows, heads // step),
        grid_names=("b", "t", "block"),
        # Safe because nothing that is written is read, the caches included.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
    )
    scales = None if q_scale is None else (q_scale, k_scale)
    cache = None if keys is None else (start, jax.new_ref(keys), jax.new_ref(values))
    q, k, v = call(qkv, cos, sin, scales, cache)
    if cache is None:
        return q, k, v, None, None
    return q, k, v, jax.freeze(cache[1]), jax.freeze(cache[2])


def _check_limits(config, num_heads, num_kv_heads, head_dim, qkv, alike, angles) -> None:
    """Raises NotImplementedError for what the kernel does not do."""
    if num_heads % config.heads_per_block or num_kv_heads % config.heads_per_block:
        raise NotImplementedError(f"{config} does not divide N={num_heads} and K={num_kv_heads}")
    if head_dim not in (64, 128, 256):
        raise NotImplementedError(f"H must be 64, 128 or 256, got {head_dim}")
    if qkv.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
        raise NotImplementedError(f"dtype must be bf16, fp16 or fp32, got {qkv.dtype}")
    for array in alike:
        if array is not None and array.dtype != qkv.dtype:
            raise NotImplementedError(f"scales and caches must be {qkv.dtype} as the projection, got {array.dtype}")
    for angle in angles:
        if angle.dtype != jnp.float32:
            raise NotImplementedError(f"cosines and sines must be fp32, got {angle.dtype}")


def _norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """RMSNorm of each row of `x` [heads, H]."""
    wide = x.astype(jnp.float32)
    mean = jnp.sum(wide * wide, axis=1) / x.shape[1]
    wide = wide * jax.lax.broadcast_in_dim(jax.lax.rsqrt(mean + eps), x.shape, (0,))
    return wide.astype(x.dtype) * jax.lax.broadcast_in_dim(scale, x.shape, (1,))


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates the pairs (i, i + H/2) of each row of `x` [heads, H]."""
    half = x.shape[1] // 2
    cos, sin = (jax.lax.broadcast_in_dim(angle, (x.shape[0], half), (1,)) for angle in (cos, sin))
    wide = x.astype(jnp.float32)
    low, high = wide[:, :half], wide[:, half:]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1).astype(x.dtype)


def _finite(x: jax.Array) -> jax.Array:
    """`jnp.nan_to_num`: NaN to 0, infinities to the largest numbers."""
    largest = float(jnp.finfo(x.dtype).max)
    wide = x.astype(jnp.float32)
    return jnp.clip(jnp.where(wide != wide, 0.0, wide), -largest, largest).astype(x.dtype)
