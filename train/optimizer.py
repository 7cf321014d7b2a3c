"""The optimizer: clipping, AdamW or Muon, linear warm-up, cosine decay."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

# Root mean square of Muon's update relative to the learning rate, as large as AdamW's usually is, so that one learning
# rate fits both kinds.
MUON_RMS = 0.2


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How parameters are updated.

    Attributes:
        peak_lr: learning rate after the warm-up.
        total_steps: applied updates until the learning rate is `final_lr_fraction * peak_lr`.
        warmup_fraction: part of `total_steps` with a linearly rising rate; its first step has a rate above 0.
        final_lr_fraction: of `peak_lr`.
        b1, b2: decay of AdamW's moments.
        weight_decay: decoupled, on arrays of two or more axes only.
        clip_norm: largest global norm of the gradient.
        kind: "adamw" or "muon"; "muon" takes Muon for two-dimensional arrays and AdamW for the others.
    """

    peak_lr: float
    total_steps: int
    warmup_fraction: float = 0.04
    final_lr_fraction: float = 0.1
    b1: float = 0.9
    b2: float = 0.95
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    kind: Any = "adamw"

    def __post_init__(self):
        if self.kind not in ("adamw", "muon"):
            raise ValueError(f"kind must be 'adamw' or 'muon', got {self.kind!r}")
        if self.total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, got {self.total_steps}")
        for name in ("peak_lr", "clip_norm"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("warmup_fraction", "final_lr_fraction", "b1", "b2"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")


def learning_rate(config: OptimizerConfig, step: int | Int[Array, ""]) -> Float[Array, ""]:
    """The rate of the update that follows `step` applied updates; constant after `total_steps`."""
    warmup_len = round(config.warmup_fraction * config.total_steps)
    count = jnp.asarray(step, jnp.float32)
    rising = (count + 1) / max(warmup_len, 1)
    progress = jnp.clip((count - warmup_len) / max(config.total_steps - warmup_len, 1), 0, 1)
    falling = config.final_lr_fraction + (1 - config.final_lr_fraction) * (1 + jnp.cos(jnp.pi * progress)) / 2
    return config.peak_lr * jnp.where(count < warmup_len, rising, falling)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Clip by global norm, then AdamW or Muon under `learning_rate`."""

    def schedule(count: Int[Array, ""]) -> Float[Array, ""]:
        return learning_rate(config, count)

    if config.kind == "adamw":
        update = optax.adamw(schedule, b1=config.b1, b2=config.b2, weight_decay=config.weight_decay, mask=_are_matrices)
    else:
        update = optax.contrib.muon(
            schedule,
            weight_decay=config.weight_decay,
            adam_b1=config.b1,
            adam_b2=config.b2,
            consistent_rms=MUON_RMS,
        )
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), update)


def _are_matrices(params: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)
