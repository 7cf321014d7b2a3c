"""Losses over the full vocabulary that never hold all logits: the head is applied chunk by chunk.

A chunk's logits live only while its loss and its gradient with respect to the states are computed, both in the forward
pass; the backward pass only scales. That is one product with the head fewer than rematerialising.
"""

from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jetspec_jax.ops.products import HIGHEST
from jetspec_jax.ops.project import project

LossKind = Literal["kl", "sft", "reverse_kl"]
LOSS_KINDS: tuple[str, ...] = get_args(LossKind)


class RowLosses(NamedTuple):
    """Per supervised row.

    Attributes:
        loss: in nats.
        agrees: 1 where the likeliest token is the teacher's likeliest.
        label_prob: probability of the label.
    """

    loss: Float[Array, "B A T"]
    agrees: Float[Array, "B A T"]
    label_prob: Float[Array, "B A T"]


def row_losses(
    student: Float[Array, "*rows V"], teacher: Float[Array, "*rows V"], labels: Int[Array, "*rows"], kind: str
) -> RowLosses:
    """Loss of each row at temperature 1.

    Args:
        student, teacher: logits.
        labels: the tokens that follow, for `label_prob`.
        kind: `kl` is KL(teacher || student), `reverse_kl` the other way round, `sft` cross entropy with the teacher's
            likeliest token.
    """
    if kind not in LOSS_KINDS:
        raise ValueError(f"loss {kind!r} is not one of {', '.join(LOSS_KINDS)}")
    log_q = jax.nn.log_softmax(student.astype(jnp.float32), axis=-1)
    teacher = teacher.astype(jnp.float32)
    best = jnp.argmax(teacher, axis=-1)
    at_best = jnp.take_along_axis(log_q, best[..., None], axis=-1)[..., 0]
    if kind == "sft":
        loss = -at_best
    else:
        log_p = jax.nn.log_softmax(teacher, axis=-1)
        near, far = (log_p, log_q) if kind == "kl" else (log_q, log_p)
        loss = jnp.sum(jnp.exp(near) * (near - far), axis=-1)
    label_prob = jnp.exp(jnp.take_along_axis(log_q, labels[..., None], axis=-1)[..., 0])
    # Equal to comparing the two arg-max, one pass over the vocabulary less.
    agrees = (at_best >= jnp.max(log_q, axis=-1)).astype(jnp.float32)
    return RowLosses(loss, agrees, jax.lax.stop_gradient(label_prob))


def head_loss(
    student: Float[Array, "B A T D"],
    teacher: Float[Array, "B S D"],
    at: Int[Array, "B A T"],
    labels: Int[Array, "B A T"],
    weights: Float[Array, "B A T"],
    head_weight: Float[Array, "V D"],
    *,
    kind: str = "kl",
    smoothing: float | None = None,
    num_chunks: int = 1,
) -> tuple[Float[Array, ""], RowLosses]:
    """Weighted sum of the rows' losses, and the losses themselves (without gradient).

    Args:
        student: normalised states of block rows.
        teacher: normalised states of the sequences; row (b, a, o) is compared with `teacher[b, at[b, a, o]]`.
        at: positions.
        labels: the tokens that follow.
        weights: of the rows; no gradient reaches them.
        head_weight: of the target, frozen.
        kind: see `row_losses`.
        smoothing: multiply the weights by `smoothed_weights` with this κ.
        num_chunks: pieces of the anchor axis; must divide it.
    """
    if student.shape[1] % num_chunks:
        raise ValueError(f"num_chunks={num_chunks} does not divide {student.shape[1]} anchors")
    return _head_loss(student, teacher, at, labels, weights, head_weight, kind, smoothing, num_chunks)


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def _head_loss(student, teacher, at, labels, weights, head_weight, kind, smoothing, num_chunks):
    return _forward(student, teacher, at, labels, weights, head_weight, kind, smoothing, num_chunks)[0]


def _forward(student, teacher, at, labels, weights, head_weight, kind, smoothing, num_chunks):
    def head(states):
        return project(states.astype(head_weight.dtype), head_weight, out_dtype=jnp.float32)

    def of_chunk(student, at, labels, weights):
        rows = jnp.take_along_axis(teacher, at.reshape(at.shape[0], -1)[..., None], axis=1, mode="clip")
        target_logits = head(rows.reshape(student.shape))

        def loss(logits):
            losses = row_losses(logits, target_logits, labels, kind)
            reached = weights if smoothing is None else weights * smoothed_weights(losses.label_prob, smoothing)
            # Rows without supervision may hold anything, a NaN too.
            return jnp.sum(jnp.where(weights > 0, losses.loss * reached, 0.0)), losses

        (total, losses), gradient = jax.value_and_grad(loss, has_aux=True)(head(student))
        gradient = jnp.where((weights > 0)[..., None], gradient, 0.0)
        # In the head's dtype: the product of an fp32 gradient would be several times slower than the head itself.
        gradient = jnp.einsum(
            "...v,vd->...d",
            gradient.astype(head_weight.dtype),
            head_weight,
            precision=HIGHEST,
            preferred_element_type=jnp.float32,
        )
        return total, losses, gradient.astype(student.dtype)

    def step(total, chunk):
        part, losses, gradient = of_chunk(*chunk)
        return total + part, (losses, gradient)

    def chunked(x):  # [B, A, ...] -> [chunks, B, A / chunks, ...]
        return jnp.moveaxis(x.reshape(x.shape[0], num_chunks, -1, *x.shape[2:]), 1, 0)

    def joined(x):
        return jnp.moveaxis(x, 0, 1).reshape(student.shape[0], -1, *x.shape[3:])

    chunks = tuple(chunked(x) for x in (student, at, labels, weights))
    total, (losses, gradient) = jax.lax.scan(step, jnp.zeros((), jnp.float32), chunks)
    return (total, RowLosses(*map(joined, losses))), joined(gradient)


def _head_loss_fwd(student, teacher, at, labels, weights, head_weight, kind, smoothing, num_chunks):
    return _forward(student, teacher, at, labels, weights, head_weight, kind, smoothing, num_chunks)


def _head_loss_bwd(kind, smoothing, num_chunks, gradient, cotangents):
    scale = cotangents[0]  # the per-row losses are for looking at
    return (gradient * scale.astype(gradient.dtype), None, None, None, None, None)


_head_loss.defvjp(_head_loss_fwd, _head_loss_bwd)


def smoothed_weights(label_prob: Float[Array, "*rows T"], kappa: float) -> Float[Array, "*rows T"]:
    """Π over the rows before each of (1 - κ) c + κ, c the probability of their label; 1 at the first row."""
    factors = (1 - kappa) * label_prob + kappa
    before = jnp.concatenate([jnp.ones_like(factors[..., :1]), factors[..., :-1]], axis=-1)
    return jnp.cumprod(before, axis=-1)


def mean_where(values: Float[Array, "*rows"], weights: Float[Array, "*rows"]) -> Float[Array, ""]:
    """Weighted mean, 0 if nothing has weight."""
    total = jnp.sum(weights)
    return jnp.sum(jnp.where(weights > 0, values * weights, 0.0)) / jnp.maximum(total, 1e-9)


def row_metrics(
    rows: RowLosses, weights: Float[Array, "B A T"], noised: Float[Array, "B A T"]
) -> dict[str, Float[Array, ""]]:
    """Agreement with the target: over all supervised rows, and in blocks without clean rows by offset."""
    # Rows before the first supervised one (the anchor of an in-place draft) neither count nor break a run.
    is_before = jnp.cumsum(noised, axis=-1) == 0
    unbroken = jnp.cumprod(jnp.where(is_before, 1.0, rows.agrees * noised), axis=-1)
    run = jnp.sum(jnp.where(is_before, 0.0, unbroken), axis=-1)
    starts = (noised.sum(axis=-1) > 0).astype(jnp.float32)
    by_offset = {
        f"agree_{offset}": mean_where(rows.agrees[..., offset], noised[..., offset])
        for offset in (0, 1, 3, 7)
        if offset < noised.shape[-1]
    }
    return {"top1": mean_where(rows.agrees, weights), "run": 1 + mean_where(run, starts)} | by_offset
