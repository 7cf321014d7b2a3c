"""The adapter's loss: predicted states of every tap, and what the frozen decoder makes of the last (handbook 7.4).

A block's rows carry the true tokens; a module reads the true states of the tap below at context positions, and in the
block what the module below predicted, with gradient, so that it learns to live with its predecessor's errors.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.functional import Leaves, ModuleDef
from jetspec_jax.models.target import Target
from train.batch import Batch
from train.blocks import BlockConfig, clean_blocks
from train.chained import chained_blocks
from train.losses import head_loss, mean_where, row_metrics, smoothed_weights
from train.sequence import cast, check_dtype, teach


class ReachWeighting(StrEnum):
    """What κ means: three readings of "weighted by the probability of being reached" (handbook 7.4)."""

    TEMPERED = "tempered"  # S_o^κ, S_o the survival of the accepted length
    SMOOTHED = "smoothed"  # Π_{i<o} ((1 - κ) c_i + κ), c_i the decoder's own probability of row i's label
    GEOMETRIC = "geometric"  # κ^o


@dataclass(frozen=True, kw_only=True)
class AdapterObjective:
    """How the adapter is trained.

    Attributes:
        blocks: anchors and rows; noise is not used.
        weighting, kappa: weights of the rows by the probability that they are reached.
        survival: assumed probability that a further draft is accepted, for `tempered`: S_o = survival^o. The handbook
            has S_o from decoding; .85 is what the prototype assumed too.
        state_weight: of the normalised squared errors of the states, summed over taps.
        decoder_weight: of the forward KL of the decoder's distribution.
        per_channel: normalise errors by each channel's energy instead of the layer's (a few channels of some targets
            hold nearly all of it).
        num_chunks: pieces of the anchor axis for the head.
        compute_dtype: of activations and of the weights' copies.
        remat: recompute modules in the backward pass, for large targets.
    """

    blocks: BlockConfig = field(default_factory=lambda: BlockConfig(num_anchors=32))
    weighting: ReachWeighting = ReachWeighting.TEMPERED
    kappa: float = 0.5
    survival: float = 0.85
    state_weight: float = 1.0
    decoder_weight: float = 1.0
    per_channel: bool = False
    num_chunks: int = 4
    compute_dtype: str = "bfloat16"
    remat: bool = False

    def __post_init__(self):
        if not 0 <= self.kappa <= 1:
            raise ValueError(f"kappa={self.kappa} must be in [0, 1]")
        if not self.blocks.shift or self.blocks.inputs != "noise":
            raise ValueError("the adapter's blocks carry true tokens and predict what follows: no mask, no in-place")
        check_dtype(self.compute_dtype)


def adapter_loss(
    objective: AdapterObjective,
    target_definition: ModuleDef,
    adapter_definition: ModuleDef,
    params: Leaves,
    frozen: Leaves,
    batch: Batch,
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Weighted mean over the supervised rows of state errors plus decoder KL, and what to log.

    Returns:
        The loss; `weight`, `kl` (nats a row), `top1` (agreement of decoder and target on the likeliest token), `run`
        (1 + rows that agree without a break), `state_j` (relative squared error of tap j).
    """
    target: Target = target_definition.merge(frozen)
    teaching = teach(target, batch.tokens)
    blocks = clean_blocks(key, batch.tokens, batch.answer_mask, objective.blocks)
    adapter: Adapter = adapter_definition.merge(cast(params, objective.compute_dtype))
    predicted = chained_blocks(adapter, teaching, target.embed(blocks.rows), blocks.anchors, remat=objective.remat)

    decoder = target.decoder()
    deepest = predicted[:, :, :, -1].astype(decoder.dtype)
    hidden = decoder.hidden(deepest, teaching.decoder_cache, blocks.anchors)
    smoothing = objective.kappa if objective.weighting == ReachWeighting.SMOOTHED else None
    weights = blocks.weights * position_weights(objective, blocks.weights.shape[-1])
    total, rows = head_loss(
        hidden,
        teaching.hidden,
        blocks.teacher,
        blocks.labels,
        weights,
        target.head_weight,
        smoothing=smoothing,
        num_chunks=objective.num_chunks,
    )
    if smoothing is not None:
        weights = weights * smoothed_weights(rows.label_prob, smoothing)
    errors = state_errors(predicted, teaching.taps, blocks.anchors, batch.answer_mask, objective.per_channel)
    weight = jnp.maximum(jnp.sum(weights), 1e-9)
    by_tap = jnp.sum(jnp.where(weights[..., None] > 0, errors * weights[..., None], 0.0), axis=(0, 1, 2)) / weight
    kl = total / weight
    loss = objective.state_weight * jnp.sum(by_tap) + objective.decoder_weight * kl
    metrics = row_metrics(rows, blocks.weights, blocks.weights)
    metrics |= {f"state_{index}": by_tap[index] for index in range(by_tap.shape[0])}
    return loss, metrics | {"kl": mean_where(rows.loss, blocks.weights), "weight": jnp.sum(blocks.weights)}


def position_weights(objective: AdapterObjective, num_rows: int) -> Float[Array, "1 1 T"]:
    """Weights that depend on the offset alone."""
    offsets = jnp.arange(num_rows, dtype=jnp.float32)[None, None, :]
    if objective.weighting == ReachWeighting.SMOOTHED:
        return jnp.ones_like(offsets)
    if objective.weighting == ReachWeighting.GEOMETRIC:
        return objective.kappa**offsets
    return objective.survival ** (objective.kappa * offsets)


def state_errors(
    predicted: Float[Array, "B A T M D"],
    taps: Float[Array, "B S M D"],
    anchors: Int[Array, "B A"],
    answer_mask: Array,
    per_channel: bool,
) -> Float[Array, "B A T M"]:
    """Squared error of each predicted state relative to the mean energy of true states of answer positions."""
    num_rows = predicted.shape[2]
    at = (anchors[..., None] + jnp.arange(num_rows, dtype=jnp.int32)[None, None, :]).reshape(anchors.shape[0], -1)
    true = jnp.take_along_axis(taps, at[:, :, None, None], axis=1, mode="clip").reshape(predicted.shape)
    inside = answer_mask.astype(jnp.float32)[:, :, None, None]
    energy = jnp.sum(jnp.square(taps.astype(jnp.float32)) * inside, axis=(0, 1)) / jnp.maximum(jnp.sum(inside), 1.0)
    if not per_channel:
        energy = jnp.broadcast_to(jnp.mean(energy, axis=-1, keepdims=True), energy.shape)
    squared = jnp.square(predicted.astype(jnp.float32) - true.astype(jnp.float32))
    return jnp.mean(squared / (energy[None, None, None] + 1e-6), axis=-1)
