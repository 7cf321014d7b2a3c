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
from jetspec_jax.models.target import Target
from jetspec_jax.ops.first_argmax import first_argmax
from jetspec_jax.ops.head_draw import head_draw
from jetspec_jax.ops.kernels import choose


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


def score(
    logits: Float[Array, "B T V"], prefix: Prefix, params: RowParams, spec: SamplingSpec
) -> tuple[Float[Array, "B T V"], Float[Array, "B T V"]]:
    """What the draw is the arg-max of.

    Returns:
        Filtered logits, in sampling rows divided by the temperature and with the position's noise added; and the same
        without the noise, the logits of the distribution that is drawn from.
    """
    filtered = apply_filters(logits, prefix, params, spec)
    if not spec.samples:
        return filtered, filtered
    is_greedy = (params.temperature == 0)[:, None, None]
    scaled = filtered / jnp.where(is_greedy, 1.0, params.temperature[:, None, None])
    if spec.truncates:
        scaled = truncate(scaled, params, by_top_k=spec.uses_top_k, by_top_p=spec.uses_top_p)
    noise = position_noise(params.key, prefix.length, logits.shape[-1])
    return jnp.where(is_greedy, filtered, scaled + noise), jnp.where(is_greedy, filtered, scaled)


def draw(logits: Float[Array, "B T V"], prefix: Prefix, params: RowParams, spec: SamplingSpec) -> Draw:
    """Draws the token of each row from the target's fp32 logits."""
    scores, processed = score(logits, prefix, params, spec)
    tokens, top = first_argmax(scores)
    # A NaN or +inf anywhere in a row, from the target or a user's filter, reaches its maximum; so does a row of -inf.
    finite = jnp.isfinite(top)
    if spec.num_logprobs is None:
        return Draw(tokens, finite, None)
    return Draw(tokens, finite, _logprobs(logits, processed, tokens, params, spec.num_logprobs))


def draw_states(
    target: Target, x: Float[Array, "B T D"], prefix: Prefix, params: RowParams, spec: SamplingSpec
) -> Draw:
    """Draws the token of each row from the residual stream after the last layer."""

    def kernel():
        if not spec.is_plain:
            raise NotImplementedError(f"filters and log-probabilities need logits: {spec}")
        temperature, key = (params.temperature, params.key) if spec.samples else (None, None)
        tokens, scores, _ = head_draw(
            target.norm(x), target.head_weight, temperature=temperature, key=key, positions=prefix.length
        )
        return Draw(tokens, jnp.isfinite(scores), None)

    return choose("head_draw", kernel, lambda: draw(target.logits(x), prefix, params, spec))


def _logprobs(logits, filtered, tokens, params: RowParams, num: int) -> Logprobs:
    raw = jax.nn.log_softmax(logits, axis=-1)
    processed = jax.nn.log_softmax(filtered, axis=-1)

    def of_draw(values):
        return jnp.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]

    top_raw, top_ids = jax.lax.top_k(raw, min(num, raw.shape[-1]))  # a small vocabulary has fewer alternatives
    is_greedy = (params.temperature == 0)[:, None]
    return Logprobs(of_draw(raw), jnp.where(is_greedy, 0.0, of_draw(processed)), top_ids.astype(jnp.int32), top_raw)
