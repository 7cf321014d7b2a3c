"""Tiny random targets: real architecture, milliseconds on CPU."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jetspec_jax.config import RopeConfig, TargetConfig, TransformerShape
from jetspec_jax.models.target import Target


def tiny_config(**overrides: Any) -> TargetConfig:
    """Two Qwen3 layers, vocabulary 97, context 1024; any `TargetConfig` or `TransformerShape` field can be replaced."""
    shape_fields = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "qk_norm": True,
    }
    shape = TransformerShape(**{k: overrides.pop(k, v) for k, v in shape_fields.items()})
    num_layers = overrides.pop("num_layers", 2)
    fields = {
        "model_type": "qwen3",
        "shape": shape,
        "num_layers": num_layers,
        "vocab_size": 97,
        "max_position_embeddings": 1024,
        "layer_types": ("full_attention",) * num_layers,
        "ropes": (("full_attention", RopeConfig(theta=1e4)),),
        "tie_word_embeddings": False,
        "taps": (0, 1) if num_layers == 2 else tuple(range(min(num_layers, 5))),
    }
    return TargetConfig(**(fields | overrides))


def tiny_target(config: TargetConfig | None = None, *, seed: int = 0, sharpness: float = 3.0) -> Target:
    """A random fp32 target whose greedy text does not collapse into one token.

    Args:
        config: None takes `tiny_config()`.
        seed: of the weights.
        sharpness: scale of the logits; larger gives a more peaked distribution.
    """
    config = tiny_config() if config is None else config
    target = Target(config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    target.norm.scale[...] = jnp.full_like(target.norm.scale[...], sharpness)
    return jax.block_until_ready(target)
