"""Training blocks: anchors, clean prefixes, noise tokens and supervision of every row (handbook 1.4, 7.2).

A block stands at its anchor p and sees the context strictly before p, by position and not by block number (bug case
C30). With next-token alignment row o predicts token p+o+1, so a block supervises the labels p+1 .. p+T as far as the
answer goes without a break (C31).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """How blocks are cut from a sequence.

    Attributes:
        num_anchors: A, anchors per sequence at most.
        num_rows: T, rows of a block.
        fully_noised_share: probability that no row after the anchor is clean; the other prefix lengths share the rest
            evenly. 1 trains only what a mask-token draft sees.
        inputs: what rows after the clean prefix carry: `noise` tokens of the sequence up to the anchor, or the `mask`.
        mask_token_id: for `inputs="mask"`.
        shift: row o predicts token p+o+1; False: row o predicts its own token p+o.
    """

    num_anchors: int = 512
    num_rows: int = 16
    fully_noised_share: float = 0.25
    inputs: str = "noise"
    mask_token_id: int | None = None
    shift: bool = True

    def __post_init__(self):
        if not 0 <= self.fully_noised_share <= 1:
            raise ValueError(f"fully_noised_share={self.fully_noised_share} must be in [0, 1]")
        if self.inputs not in ("noise", "mask"):
            raise ValueError(f"inputs={self.inputs!r} is not supported (noise, mask)")
        if (self.inputs == "mask") != (self.mask_token_id is not None):
            raise ValueError(f"inputs={self.inputs!r} with mask_token_id={self.mask_token_id}")
        if self.num_anchors < 1 or self.num_rows < 2:
            raise ValueError(f"num_anchors={self.num_anchors}, num_rows={self.num_rows} leave nothing to train")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Blocks:
    """Blocks of a batch of sequences.

    Attributes:
        anchors: position p of each block's anchor.
        rows: token ids of the rows.
        labels: the token each row is to predict.
        teacher: position whose target logits predict the label.
        weights: 1 where a row is supervised, else 0.
        num_clean: clean rows after the anchor.
    """

    anchors: Int[Array, "B A"]
    rows: Int[Array, "B A T"]
    labels: Int[Array, "B A T"]
    teacher: Int[Array, "B A T"]
    weights: Float[Array, "B A T"]
    num_clean: Int[Array, "B A"]


def sample_anchors(
    key: Key[Array, ""], answer_mask: Bool[Array, "B S"], num_anchors: int
) -> tuple[Int[Array, "B A"], Bool[Array, "B A"]]:
    """Anchors without replacement among positions whose next token belongs to the answer, and which of them are real.

    A sequence with fewer candidates gets them all; its other anchors stand at 0 and are to be ignored.
    """
    eligible = jnp.pad(answer_mask[:, 1:], ((0, 0), (0, 1)))
    num_anchors_, size = num_anchors, answer_mask.shape[1]
    order = jnp.where(eligible, jax.random.uniform(key, answer_mask.shape), -1.0)
    top, anchors = jax.lax.top_k(order, min(num_anchors_, size))
    spare = num_anchors - anchors.shape[1]
    top = jnp.pad(top, ((0, 0), (0, spare)), constant_values=-1.0)
    anchors = jnp.pad(anchors, ((0, 0), (0, spare)))
    return jnp.where(top >= 0, anchors, 0).astype(jnp.int32), top >= 0


def cut_blocks(
    key: Key[Array, ""], tokens: Int[Array, "B S"], answer_mask: Bool[Array, "B S"], config: BlockConfig
) -> Blocks:
    """Samples anchors and builds their blocks.

    Args:
        key: of this step.
        tokens: prompt and answer, padded.
        answer_mask: True at tokens of the answer, its end-of-turn token included.
        config: sizes and noise.
    """
    for_anchors, for_prefix, for_share, for_noise = jax.random.split(key, 4)
    anchors, is_real = sample_anchors(for_anchors, answer_mask, config.num_anchors)
    batch, num_blocks, num_rows = *anchors.shape, config.num_rows
    is_noised = jax.random.uniform(for_share, anchors.shape) < config.fully_noised_share
    num_clean = jnp.where(is_noised, 0, jax.random.randint(for_prefix, anchors.shape, 1, num_rows))

    offsets = jnp.arange(num_rows, dtype=jnp.int32)[None, None, :]
    own = anchors[..., None] + offsets
    unknown = config.mask_token_id
    if config.inputs == "noise":
        # One draw per row whatever the prefix length, uniform over 0 .. p; the true token is not excluded.
        share = jax.random.uniform(for_noise, (batch, num_blocks, num_rows))
        at = jnp.minimum((share * (anchors[..., None] + 1)).astype(jnp.int32), anchors[..., None])
        unknown = _take(tokens, at)
    rows = jnp.where(offsets <= num_clean[..., None], _take(tokens, own), unknown)

    ahead = 1 if config.shift else 0
    label_at = own + ahead
    in_answer = _take(answer_mask, label_at) & (label_at < tokens.shape[1])
    # Without the shift row 0 holds its own label: nothing to learn.
    in_answer = in_answer | (offsets < 1 - ahead)
    weights = jnp.cumprod(in_answer.astype(jnp.float32), axis=-1) * is_real[..., None] * (offsets >= 1 - ahead)
    return Blocks(anchors, rows, _take(tokens, label_at), label_at - 1, weights, num_clean)


def clean_blocks(
    key: Key[Array, ""], tokens: Int[Array, "B S"], answer_mask: Bool[Array, "B S"], config: BlockConfig
) -> Blocks:
    """Blocks whose rows all carry the true tokens, for the adapter."""
    blocks = cut_blocks(key, tokens, answer_mask, config)
    own = blocks.anchors[..., None] + jnp.arange(config.num_rows, dtype=jnp.int32)[None, None, :]
    return Blocks(
        blocks.anchors,
        _take(tokens, own),
        blocks.labels,
        blocks.teacher,
        blocks.weights,
        jnp.full_like(blocks.num_clean, config.num_rows - 1),
    )


def _take(values: Array, at: Int[Array, "B A T"]) -> Array:
    """Entries of each sequence at positions [A, T]; positions beyond the end read the last entry."""
    flat = jnp.take_along_axis(values, at.reshape(at.shape[0], -1), axis=1, mode="clip")
    return flat.reshape(at.shape)
