"""Self-refinement of drafted blocks: Jacobi passes, context refresh, anchor replacement (handbook 7.3).

Pure over two functions, so that it does not know what a draft or a decoder is. It changes proposals only; the text
never depends on it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jetspec_jax.decoding.proposal import Proposal, RefineTrace
from jetspec_jax.drafting_config import RefineConfig


@dataclass(frozen=True)
class Guess:
    """A model's tokens for the G positions of each block.

    Attributes:
        tokens: its arg-max.
        logprobs: log-probability it gives to them; None if nobody asks.
        states: what the next pass may read of the rows it saw (a refresh only).
    """

    tokens: Int[Array, "B R G"]
    logprobs: Float[Array, "B R G"] | None = None
    states: Any = None


# (drafts [B,R,G] or None for the noised block, num_fixed [B,R], refreshed states or None) -> Guess
DraftPass = Callable[[Int[Array, "B R G"] | None, Int[Array, "B R"], Any], Guess]
# drafts [B,R,G] -> the decoder's Guess for the same positions, with predicted states of the rows
Refresh = Callable[[Int[Array, "B R G"]], Guess]


def refine(draft_pass: DraftPass, refresh: Refresh | None, config: RefineConfig) -> Proposal:
    """Drafts blocks and rewrites them, with every pass recorded.

    Example (the paper's Figure 4), γ = 7: the decoder agrees at 1..3 and differs at 4: its token is written there, 1..4
    are fixed, the next pass redrafts 5..7. The next refresh agrees at 5, 6 and fixes 7.

    Args:
        draft_pass: one pass of the draft over blocks of noise or of earlier drafts.
        refresh: adapter and decoder over the blocks; None if `config` has no refresh.
        config: how many of each, and the variants.

    Returns:
        A proposal with axes [B, R]; `is_hit` is False and `mass` 0.

    Raises:
        ValueError: refreshes without a `refresh`.
    """
    if config.num_refreshes and refresh is None:
        raise ValueError(f"{config.name} needs predicted target states, but there is no adapter")
    guess = draft_pass(None, None, None)
    tokens = guess.tokens
    logprobs = guess.logprobs
    offsets = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None, :]
    num_fixed = jnp.zeros(tokens.shape[:-1], jnp.int32)
    passes, fixed_at, proxies, states = [tokens], [num_fixed], [], None
    for index in range(config.num_passes):
        keeps_noise = False
        if index < config.num_refreshes:
            proxy = refresh(tokens)
            states = proxy.states
            tokens, num_fixed, logprobs = _settle(tokens, num_fixed, logprobs, proxy, offsets, config)
            proxies.append(proxy.tokens)
            keeps_noise = config.rewritten == "renoise"
        is_fixed = offsets < num_fixed[..., None]
        inputs = jnp.where(is_fixed, tokens, RENOISE) if keeps_noise else tokens
        guess = draft_pass(inputs, num_fixed, states)
        tokens = jnp.where(is_fixed, tokens, guess.tokens)
        if logprobs is not None:
            logprobs = jnp.where(is_fixed, logprobs, guess.logprobs)
        passes.append(tokens)
        fixed_at.append(num_fixed)
    trace = RefineTrace(
        passes=jnp.stack(passes, axis=-2),
        num_fixed=jnp.stack(fixed_at, axis=-1),
        proxies=jnp.stack(proxies, axis=-2)
        if proxies
        else jnp.zeros((*tokens.shape[:-1], 0, tokens.shape[-1]), jnp.int32),
    )
    return Proposal.of_tokens(tokens, logprobs, trace)


# Asks the draft pass for a noise token in this row; no vocabulary has it.
RENOISE = -2


def _settle(tokens, num_fixed, logprobs, proxy: Guess, offsets, config: RefineConfig):
    """Fixes the prefix on which draft and decoder agree and, if wanted, the decoder's token after it.

    What is fixed stays fixed, whatever the decoder thinks of it now: the set only grows.
    """
    agrees = (tokens == proxy.tokens) | (offsets < num_fixed[..., None])
    num_agreed = jnp.sum(jnp.cumprod(agrees.astype(jnp.int32), axis=-1), axis=-1, dtype=jnp.int32)
    if not config.replace_anchor:
        return tokens, num_agreed, logprobs
    is_replaced = offsets == num_agreed[..., None]
    tokens = jnp.where(is_replaced, proxy.tokens, tokens)
    if logprobs is not None:
        logprobs = jnp.where(is_replaced, proxy.logprobs, logprobs)
    return tokens, jnp.minimum(num_agreed + 1, tokens.shape[-1]), logprobs
