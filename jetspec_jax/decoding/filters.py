"""Filters of the target's logits: pure functions of (prefix, logits), in fp32.

Row i of a verified block sees the prefix `committed + draft[:i]`, so penalties and processors act on a drafted row
exactly as they would in plain decoding, and a rejected draft leaves no trace (bug cases C12, C19).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.row_params import RowParams, SamplingSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prefix:
    """What each row of a block has before it.

    Attributes:
        tokens: [B, S], committed tokens and, after them, the drafted tokens of the block being verified.
        length: [B, T], row t is drawn given `tokens[:length[t]]`; it is also the absolute position of the draw.
        prompt_len: [B].
    """

    tokens: Int[Array, "B S"]
    length: Int[Array, "B T"]
    prompt_len: Int[Array, "B"]


def apply_filters(
    logits: Float[Array, "B T V"], prefix: Prefix, params: RowParams, spec: SamplingSpec
) -> Float[Array, "B T V"]:
    """Penalties, bias, minimum length and processors, in this order; dropped tokens get -inf."""
    if spec.penalizes:
        logits = _penalize(logits, prefix, params)
    if spec.biases:
        logits = add_bias(logits, params)
    if spec.suppresses:
        num_new = prefix.length - prefix.prompt_len[:, None]
        too_short = (num_new < params.min_new_tokens[:, None])[:, :, None]
        logits = jnp.where(too_short & _id_mask(params.end_ids, logits.shape[2])[:, None, :], -jnp.inf, logits)
    for processor in spec.logits_processors:
        over_rows = jax.vmap(processor, in_axes=(None, 0, 0))
        processed = jax.vmap(over_rows)(prefix.tokens, prefix.length, logits)
        if processed.shape != logits.shape or processed.dtype != logits.dtype:
            raise ValueError(
                f"logits processor {processor!r} must return float32 logits of shape [{logits.shape[2]}], "
                f"got {processed.dtype}{list(processed.shape[2:])}"
            )
        logits = processed
    return logits


def add_bias(logits: Float[Array, "B T V"], params: RowParams) -> Float[Array, "B T V"]:
    """Adds each request's `logit_bias`."""
    rows = jnp.arange(logits.shape[0])[:, None]
    bias = jnp.zeros((logits.shape[0], logits.shape[2]), logits.dtype)
    return logits + bias.at[rows, params.bias_ids].add(params.bias_values, mode="drop")[:, None, :]


def _id_mask(ids: Int[Array, "B E"], vocab_size: int) -> Bool[Array, "B V"]:
    """One-hot union of ids; padding ids >= V fall away."""
    rows = jnp.arange(ids.shape[0])[:, None]
    return jnp.zeros((ids.shape[0], vocab_size), bool).at[rows, ids].set(True, mode="drop")


def _penalize(logits: Float[Array, "B T V"], prefix: Prefix, params: RowParams) -> Float[Array, "B T V"]:
    """Repetition penalty over prompt and output, presence and frequency penalties over the output."""
    vocab_size = logits.shape[2]
    slots = jnp.arange(prefix.tokens.shape[1])[None, :]
    is_output = slots >= prefix.prompt_len[:, None]

    def count(tokens, select):  # [S], [S] -> [V]
        return jnp.zeros((vocab_size,), jnp.int32).at[jnp.where(select, tokens, vocab_size)].add(1, mode="drop")

    def one_row(tokens, is_output, length):
        before = jnp.arange(tokens.shape[0]) < length
        return count(tokens, before), count(tokens, before & is_output)

    over_rows = jax.vmap(one_row, in_axes=(None, None, 0))
    seen, generated = jax.vmap(over_rows)(prefix.tokens, is_output, prefix.length)  # [B, T, V] each
    repetition = params.repetition_penalty[:, None, None]
    scaled = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(seen > 0, scaled, logits)
    logits = logits - params.frequency_penalty[:, None, None] * generated
    return logits - params.presence_penalty[:, None, None] * (generated > 0)


def truncate(
    logits: Float[Array, "B T V"], params: RowParams, *, by_top_k: bool = True, by_top_p: bool = True
) -> Float[Array, "B T V"]:
    """Top-k, then top-p of what is left, then min-p, on logits already divided by the temperature.

    Both thresholds are found by bisection over the ordered bit patterns of fp32 (32 exact steps), not by sorting the
    vocabulary: tokens that tie with the last kept one are all kept. A threshold that no row of the batch uses can be
    left out.
    """
    is_nan = jnp.isnan(logits)
    kept_logits = _keep_top_k(logits, params.top_k) if by_top_k else logits
    probs = jax.nn.softmax(kept_logits, axis=-1)
    kept = probs >= params.min_p[:, None, None] * jnp.max(probs, axis=-1, keepdims=True)
    if by_top_p:
        kept &= _top_p_mask(probs, params.top_p)
    # A NaN, whatever its sign, must stay to be seen by the draw.
    return jnp.where(is_nan, jnp.nan, jnp.where(kept, kept_logits, -jnp.inf))


def _keep_top_k(logits: Float[Array, "B T V"], top_k: Int[Array, "B"]) -> Float[Array, "B T V"]:
    keys = _ordered_bits(logits)
    wanted = jnp.minimum(top_k, logits.shape[-1])[:, None]  # top_k = 0 keeps all

    def enough(threshold: Int[Array, "B T"]) -> Bool[Array, "B T"]:
        return jnp.sum(keys >= threshold[..., None], axis=-1) >= wanted

    threshold = _largest_threshold(enough, logits.shape[:2])
    return jnp.where((keys >= threshold[..., None]) | (top_k == 0)[:, None, None], logits, -jnp.inf)


def _top_p_mask(probs: Float[Array, "B T V"], top_p: Float[Array, "B"]) -> Bool[Array, "B T V"]:
    keys = _ordered_bits(probs)

    def enough(threshold: Int[Array, "B T"]) -> Bool[Array, "B T"]:
        return jnp.sum(jnp.where(keys >= threshold[..., None], probs, 0.0), axis=-1) >= top_p[:, None]

    threshold = _largest_threshold(enough, probs.shape[:2])
    # Rounding may leave the total below a top_p of 1: then nothing is dropped.
    return (keys >= threshold[..., None]) | (top_p >= 1.0)[:, None, None]


def _ordered_bits(x: Float[Array, "B T V"]) -> Int[Array, "B T V"]:
    """int32 keys in the order of the floats: the bits of a negative float count downwards, so they are flipped."""
    unsigned_zero = jnp.where(x == 0, 0.0, x)  # -0.0 ties with 0.0; XLA would remove an addition of 0.0
    bits = jax.lax.bitcast_convert_type(unsigned_zero.astype(jnp.float32), jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _largest_threshold(enough, shape: tuple[int, ...]) -> Int[Array, "B T"]:
    """Largest int32 t with enough(t), for a predicate that holds at -2^31 and turns false once as t grows."""
    low = jnp.full(shape, -(2**31), jnp.int32)

    def step(i, low):
        # Adding 2^31 to -2^31 does not fit int32, but wraps to the right value.
        candidate = low + jnp.left_shift(jnp.int32(1), 31 - i)
        return jnp.where(enough(candidate), candidate, low)

    return jax.lax.fori_loop(0, 32, step, low)
