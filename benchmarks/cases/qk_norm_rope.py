"""Norm, rotation and cache write of a fused projection."""

from math import gcd

import jax
import jax.numpy as jnp

from benchmarks.cases.case import Case, normal
from benchmarks.chains import Inputs
from jetspec_jax.config import RopeConfig
from jetspec_jax.models.cache import write_rows
from jetspec_jax.ops.norm_rope import apply_rope, rms_norm, rope_angles
from pallas_kernels.qk_norm_rope import QKNormRopeConfig, qk_norm_rope, reference
from pallas_kernels.qk_norm_rope.shapes import SHAPES, Projection

EPS = 1e-6


def case(name: str, shape: Projection) -> Case:
    """Rows in the middle of their cache, or rows that keep their keys to themselves.

    Angles are shared by all calls, as the layers of a model share them; a cache is written in place.
    """
    heads, kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "eps": EPS}
    has_cache = shape.capacity is not None

    def fused(function, qkv, q_scale, k_scale, angles, start, keys, values, **options):
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        q, k, v, keys, values = function(qkv, q_scale, k_scale, cos, sin, keys, values, start, **sizes, **options)
        return (q, None, None) if has_cache else (q, k, v), (keys, values)

    def xla(qkv, q_scale, k_scale, angles, start, keys, values):
        heads_of = qkv.reshape(*qkv.shape[:2], -1, head_dim)
        q, k, v = jnp.split(heads_of, [heads, heads + kv_heads], axis=2)
        if shape.has_norm:
            q, k = rms_norm(q, q_scale, EPS), rms_norm(k, k_scale, EPS)
        q, k = apply_rope(q, angles), apply_rope(k, angles)
        if not has_cache:
            return (q, k, v), (None, None)
        return (q, None, None), (write_rows(keys, k, start), write_rows(values, jnp.nan_to_num(v), start))

    def make(key) -> Inputs:
        keys, rows = jax.random.split(key, 3), (shape.batch, shape.num_rows)
        scales = [normal(one, head_dim) if shape.has_norm else None for one in keys[:2]]
        first = (shape.capacity or 0) // 2
        positions = jnp.broadcast_to(first + jnp.arange(shape.num_rows, dtype=jnp.int32)[None, :], rows)
        angles = rope_angles(positions, RopeConfig(theta=1e6), head_dim)
        start, state = None, (None, None)
        if has_cache:
            start = jnp.full((shape.batch,), first, jnp.int32)
            cache = (shape.batch, kv_heads, shape.capacity, head_dim)
            state = (jnp.zeros(cache, jnp.bfloat16), jnp.zeros(cache, jnp.bfloat16))
        return Inputs((normal(keys[2], *rows, (heads + 2 * kv_heads) * head_dim), *scales), (angles, start), state)

    def configs() -> list[QKNormRopeConfig]:
        return [QKNormRopeConfig(step) for step in (1, 2, 4, 8) if gcd(heads, kv_heads) % step == 0]

    num_rows, written = shape.batch * shape.num_rows, (heads + 2 * kv_heads) * head_dim
    to_cache = 2 * kv_heads * head_dim * has_cache
    return Case(
        name=name,
        kernel=lambda *arrays, config=None: fused(qk_norm_rope, *arrays, config=config),
        xla=xla,
        reference=lambda *arrays: fused(reference.qk_norm_rope, *arrays),
        make=make,
        num_bytes=num_rows * (2 * (2 * written + to_cache) + 4 * head_dim),
        configs=configs,
    )


__all__ = ["SHAPES", "case"]
