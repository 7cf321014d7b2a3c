"""The draft's loss: blocks with clean prefixes and noise, against the target's whole distribution (handbook 7.2)."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import Leaves, ModuleDef
from jetspec_jax.models.target import Target
from train.batch import Batch
from train.blocks import BlockConfig, cut_blocks
from train.losses import LossKind, RowLosses, head_loss, mean_where
from train.sequence import teach


@dataclass(frozen=True, kw_only=True)
class DraftObjective:
    """How the draft is trained; every ablation of the paper is a value of these.

    Attributes:
        blocks: anchors, prefix lengths, noise, alignment.
        loss: `kl` (forward, the paper's), `sft` or `reverse_kl`.
        num_chunks: pieces of the anchor axis for the head; more take less memory.
        compute_dtype: of activations and of the weights' copies; master weights are fp32.
        remat: recompute the draft's layers in the backward pass, for large targets.
    """

    blocks: BlockConfig = field(default_factory=BlockConfig)
    loss: LossKind = "kl"
    num_chunks: int = 8
    compute_dtype: str = "bfloat16"
    remat: bool = False


def draft_loss(
    objective: DraftObjective,
    target_definition: ModuleDef,
    draft_definition: ModuleDef,
    params: Leaves,
    frozen: Leaves,
    batch: Batch,
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Mean loss of the supervised rows, and what to log.

    Returns:
        Loss in nats a row; `weight` (supervised rows), `top1` (agreement with the target's likeliest token), `run` (1 +
        rows of a fully noised block that agree without a break, what one pass would commit at most), and agreement at
        a few offsets.
    """
    target: Target = target_definition.merge(frozen)
    teaching = teach(target, batch.tokens)
    blocks = cut_blocks(key, batch.tokens, batch.answer_mask, objective.blocks)

    def run(leaves):
        draft: Draft = draft_definition.merge(leaves)
        return draft(target.embed(blocks.rows), context_of(draft, teaching.taps), blocks.anchors)

    hidden = (jax.checkpoint(run) if objective.remat else run)(cast(params, objective.compute_dtype))
    total, rows = head_loss(
        hidden,
        teaching.hidden,
        blocks.teacher,
        blocks.labels,
        blocks.weights,
        target.head_weight,
        kind=objective.loss,
        num_chunks=objective.num_chunks,
    )
    weight = jnp.sum(blocks.weights)
    noised = blocks.weights * (blocks.num_clean == 0)[..., None]
    return total / jnp.maximum(weight, 1.0), row_metrics(rows, blocks.weights, noised) | {"weight": weight}


def row_metrics(
    rows: RowLosses, weights: Float[Array, "B A T"], noised: Float[Array, "B A T"]
) -> dict[str, Float[Array, ""]]:
    """Agreement with the target: over all supervised rows, and in blocks without clean rows by offset."""
    run = jnp.sum(jnp.cumprod(rows.agrees * noised, axis=-1), axis=-1)
    starts = (noised.sum(axis=-1) > 0).astype(jnp.float32)
    by_offset = {
        f"agree_{offset}": mean_where(rows.agrees[..., offset], noised[..., offset])
        for offset in (0, 1, 3, 7)
        if offset < noised.shape[-1]
    }
    return {"top1": mean_where(rows.agrees, weights), "run": 1 + mean_where(run, starts)} | by_offset


def context_of(draft: Draft, taps: Float[Array, "B S M D"]) -> KVCache:
    """The draft's context of whole sequences."""
    rows = draft.inject(taps[:, None], jnp.zeros((taps.shape[0], 1), jnp.int32))
    keys, values = (tuple(x[:, 0] for x in side) for side in (rows.keys, rows.values))
    return KVCache(keys, values, jnp.full((taps.shape[0],), taps.shape[1], jnp.int32))


def cast(params: Any, dtype: DTypeLike) -> Any:
    """Copies of the master weights for computing."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)
