"""RMSNorm and rotary position embedding, in plain jnp (reference; a fused kernel may replace them)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jetspec_jax.config import RopeConfig


def rms_norm(x: Float[Array, "*rows D"], scale: Float[Array, "D"], eps: float) -> Float[Array, "*rows D"]:
    """`x / sqrt(mean(x^2) + eps) * scale`; statistics in fp32, result in the dtype of x."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return wide.astype(x.dtype) * jnp.expand_dims(scale, range(x.ndim - 1)).astype(x.dtype)


def _yarn_ramp(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Share of interpolation per frequency: 0 keeps the frequency, 1 divides it by `factor` (YaRN, eq. 23)."""

    def dimension_of(num_rotations: float) -> float:
        wavelength_ratio = rope.original_max_position_embeddings / (num_rotations * 2 * math.pi)
        return head_dim * math.log(wavelength_ratio) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0, 1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Angular step per position of each half-dimension, fp32 whatever the weights' dtype.

    Computed on the host once per trace: rounding these to bf16 costs acceptance at long context.

    Returns:
        Array [head_dim / 2] of radians per position.
    """
    freqs = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.rope_type == "linear":
        freqs = freqs / rope.factor
    elif rope.rope_type == "llama3":
        # Long wavelengths are stretched by `factor`, short ones kept, the band between is blended.
        turns = rope.original_max_position_embeddings * freqs / (2 * math.pi)
        keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        keep = np.clip(keep, 0, 1)
        freqs = freqs * keep + freqs / rope.factor * (1 - keep)
    elif rope.rope_type == "yarn":
        ramp = _yarn_ramp(rope, head_dim)
        freqs = freqs * (1 - ramp) + freqs / rope.factor * ramp
    return freqs.astype(np.float32)


def rope_angles(positions: Int[Array, "B T"], rope: RopeConfig, head_dim: int) -> Float[Array, "B T half"]:
    """Rotation angles in radians of each position, fp32."""
    freqs = jnp.asarray(inverse_frequencies(rope, head_dim))
    return positions[..., None].astype(jnp.float32) * freqs[None, None, :]


def apply_rope(
    x: Float[Array, "B T N H"], angles: Float[Array, "B T half"], attention_factor: float = 1.0
) -> Float[Array, "B T N H"]:
    """Rotates pairs (i, i + H/2) of each head (the half-split convention of Hugging Face checkpoints)."""
    cos = (jnp.cos(angles) * attention_factor)[:, :, None, :]
    sin = (jnp.sin(angles) * attention_factor)[:, :, None, :]
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)
