"""The draft's loss: blocks with clean prefixes and noise, against the target's whole distribution (handbook 7.2)."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import Leaves, ModuleDef
from jetspec_jax.models.target import Target
from train.batch import Batch
from train.blocks import BlockConfig, cut_blocks
from train.chained import chained_blocks
from train.losses import LOSS_KINDS, LossKind, head_loss, row_metrics
from train.sequence import cast, check_dtype, teach


@dataclass(frozen=True, kw_only=True)
class DraftObjective:
    """How the draft is trained; every ablation of the paper is a value of these.

    Attributes:
        blocks: anchors, prefix lengths, noise, alignment.
        loss: `kl` (forward, the paper's), `sft` or `reverse_kl`.
        predicted_share: share of the blocks whose clean rows are shown as the adapter's predicted states and not as
            rows, as a context refresh shows settled rows (handbook 7.3); ours, not the paper's. Needs an adapter.
        num_chunks: pieces of the anchor axis for the head; more take less memory.
        compute_dtype: of activations and of the weights' copies; master weights are fp32.
        remat: recompute the draft's layers in the backward pass, for large targets.
    """

    blocks: BlockConfig = field(default_factory=BlockConfig)
    loss: LossKind = "kl"
    predicted_share: float = 0.0
    num_chunks: int = 8
    compute_dtype: str = "bfloat16"
    remat: bool = False

    def __post_init__(self):
        if self.loss not in LOSS_KINDS:
            raise ValueError(f"loss={self.loss!r} is not one of {', '.join(LOSS_KINDS)}")
        check_dtype(self.compute_dtype)
        if not 0 <= self.predicted_share <= 1:
            raise ValueError(f"predicted_share={self.predicted_share} must be in [0, 1]")
        if self.predicted_share and not self.blocks.shift:
            raise ValueError("predicted_share needs shift: without it the effective anchor predicts nothing")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FrozenParts:
    """What draft training reads and never updates.

    Attributes:
        target: leaves of the target.
        adapter: leaves of the adapter, () without one.
    """

    target: Leaves
    adapter: Leaves = ()


def draft_loss(
    objective: DraftObjective,
    target_definition: ModuleDef,
    draft_definition: ModuleDef,
    params: Leaves,
    frozen: FrozenParts,
    batch: Batch,
    key: Key[Array, ""],
    adapter_definition: ModuleDef | None = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Mean loss of the supervised rows, and what to log.

    Returns:
        Loss in nats a row; `weight` (supervised rows), `top1` (agreement with the target's likeliest token), `run` (1 +
        rows of a fully noised block that agree without a break, what one pass would commit at most), and agreement at
        a few offsets.
    """
    target: Target = target_definition.merge(frozen.target)
    teaching = teach(target, batch.tokens)
    for_blocks, for_share = jax.random.split(key)
    blocks = cut_blocks(for_blocks, batch.tokens, batch.answer_mask, objective.blocks)
    embedded = target.embed(blocks.rows)
    num_settled = predicted = None
    weights = blocks.weights
    if objective.predicted_share:
        is_predicted = jax.random.uniform(for_share, blocks.num_clean.shape) < objective.predicted_share
        num_settled = jnp.where(is_predicted, blocks.num_clean, 0)
        adapter: Adapter = adapter_definition.merge(cast(frozen.adapter, objective.compute_dtype))
        predicted = chained_blocks(adapter, teaching, embedded, blocks.anchors, remat=False)
        predicted = jax.lax.stop_gradient(predicted)
        # Rows before the effective anchor mean nothing.
        weights = weights * (jnp.arange(objective.blocks.num_rows)[None, None, :] >= num_settled[..., None])

    def run(leaves):
        draft: Draft = draft_definition.merge(leaves)
        context = context_of(draft, teaching.taps)
        states = None if predicted is None else draft.inject(predicted, blocks.anchors)
        return draft(embedded, context, blocks.anchors, num_fixed=num_settled, refreshed=states)

    hidden = (jax.checkpoint(run) if objective.remat else run)(cast(params, objective.compute_dtype))
    total, rows = head_loss(
        hidden,
        teaching.hidden,
        blocks.teacher,
        blocks.labels,
        weights,
        target.head_weight,
        kind=objective.loss,
        num_chunks=objective.num_chunks,
    )
    weight = jnp.sum(weights)
    noised = weights * (blocks.num_clean == 0)[..., None]
    return total / jnp.maximum(weight, 1.0), row_metrics(rows, weights, noised) | {"weight": weight}


def context_of(draft: Draft, taps: Float[Array, "B S M D"]) -> KVCache:
    """The draft's context of whole sequences."""
    rows = draft.inject(taps[:, None], jnp.zeros((taps.shape[0], 1), jnp.int32))
    keys, values = (tuple(x[:, 0] for x in side) for side in (rows.keys, rows.values))
    return KVCache(keys, values, jnp.full((taps.shape[0],), taps.shape[1], jnp.int32))
