"""The target's draw: position-keyed Gumbel-max, the root of losslessness (`design.md` section 4).

Row t of the text is `argmax(filtered_logits_t / T + Gumbel(fold_in(key, t)))`, at T = 0 the plain arg-max (first index
on ties). The draw depends on the prefix, the seed and the position alone, so the text is the same for every drafter,
block size, batch and device count, and a drafted token is right iff it equals the draw.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jetspec_jax.decoding.filters import Prefix, apply_filters, truncate
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Logprobs:
    """Natural-log probabilities of drawn tokens.

    Attributes:
        raw: of the draw, under the target's unfiltered distribution at temperature 1.
        processed: of the draw, after filters and temperature (0 for a greedy row).
        top_ids, top_raw: the likeliest alternatives under the unfiltered distribution, likeliest first.
    """

    raw: Float[Array, "B T"]
    processed: Float[Array, "B T"]
    top_ids: Int[Array, "B T A"]
    top_raw: Float[Array, "B T A"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Draw:
    """The target's own tokens for T rows.

    Attributes:
        tokens: [B, T].
        finite: rows whose logits were usable; a NaN, a +inf or a row of -inf makes the draw meaningless.
        logprobs: None unless asked for.
    """

    tokens: Int[Array, "B T"]
    finite: Bool[Array, "B T"]
    logprobs: Logprobs | None


def position_noise(keys: Key[Array, "B"], positions: Int[Array, "B T"], vocab_size: int) -> Float[Array, "B T V"]:
    """Standard Gumbel noise of absolute positions; the same for whoever asks (target, draft, decoder)."""

    def one(key, position):
        return jax.random.gumbel(jax.random.fold_in(key, position), (vocab_size,), jnp.float32)

    return jax.vmap(jax.vmap(one, in_axes=(None, 0)))(keys, positions)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scores:
    """What the draw is the arg-max of.

    Attributes:
        scores: filtered logits, divided by the temperature and with the position's noise where a row samples.
        processed: the same without the noise: logits of the distribution drawn from (greedy rows: filtered logits).
        finite: see `Draw`.
    """

    scores: Float[Array, "B T V"]
    processed: Float[Array, "B T V"]
    finite: Bool[Array, "B T"]


def score(logits: Float[Array, "B T V"], prefix: Prefix, params: RowParams, spec: SamplingSpec) -> Scores:
    """Filters the target's fp32 logits and adds the noise of each row's position."""
    finite = ~jnp.any(jnp.isnan(logits), axis=-1) & jnp.isfinite(jnp.max(logits, axis=-1))
    filtered = apply_filters(logits, prefix, params, spec)
    # A filter of the user's may produce NaN, or leave no token at all.
    finite &= ~jnp.any(jnp.isnan(filtered), axis=-1) & jnp.isfinite(jnp.max(filtered, axis=-1))
    if not spec.samples:
        return Scores(filtered, filtered, finite)
    is_greedy = (params.temperature == 0)[:, None, None]
    scaled = filtered / jnp.where(is_greedy, 1.0, params.temperature[:, None, None])
    if spec.truncates:
        scaled = truncate(scaled, params)
    noise = position_noise(params.key, prefix.length, logits.shape[-1])
    return Scores(jnp.where(is_greedy, filtered, scaled + noise), jnp.where(is_greedy, filtered, scaled), finite)


def draw(logits: Float[Array, "B T V"], prefix: Prefix, params: RowParams, spec: SamplingSpec) -> Draw:
    """Draws the token of each row from the target's fp32 logits."""
    scored = score(logits, prefix, params, spec)
    tokens = jnp.argmax(scored.scores, axis=-1).astype(jnp.int32)
    if spec.num_logprobs is None:
        return Draw(tokens, scored.finite, None)
    logprobs = _logprobs(logits, scored.processed, tokens, params, spec.num_logprobs)
    return Draw(tokens, scored.finite, logprobs)


def _logprobs(logits, filtered, tokens, params: RowParams, num: int) -> Logprobs:
    raw = jax.nn.log_softmax(logits, axis=-1)
    processed = jax.nn.log_softmax(filtered, axis=-1)

    def of_draw(values):
        return jnp.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]

    top_raw, top_ids = jax.lax.top_k(raw, min(num, raw.shape[-1]))  # a small vocabulary has fewer alternatives
    is_greedy = (params.temperature == 0)[:, None]
    return Logprobs(of_draw(raw), jnp.where(is_greedy, 0.0, of_draw(processed)), top_ids.astype(jnp.int32), top_raw)
