"""The outcome cache: blocks drafted in advance for likely outcomes of the verification under way, and their selection.

A prepared block is valid for one outcome only: the same request, the same round, the same number of accepted drafts and
the same next anchor. Anything else is a miss (bug case I03). All of it happens on the device, without a host branch.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.outcomes import Outcomes
from jetspec_jax.decoding.proposal import Proposal, RefineTrace
from jetspec_jax.decoding.state import Verdict
from jetspec_jax.decoding.verify import NO_TOKEN


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OutcomeCache:
    """R prepared blocks per request, likeliest outcome first.

    Attributes:
        request, round: [B], the verification whose outcome is foreseen.
        outcomes: [B, R], the outcomes prepared for.
        proposals: [B, R], their blocks.
        evidence: [B, T, V], what the outcomes were chosen by; None unless somebody calibrates.
    """

    request: Int[Array, "B"]
    round: Int[Array, "B"]
    outcomes: Outcomes
    proposals: Proposal
    evidence: Float[Array, "B T V"] | None = None

    def hits(self, verdict: Verdict) -> Bool[Array, "B R"]:
        """Which prepared outcome is the one that came; at most one per request."""
        is_this = (self.request == verdict.request) & (self.round == verdict.round)
        same_length = self.outcomes.num_accepted == verdict.num_accepted[:, None]
        same_anchor = self.outcomes.anchor == verdict.anchor[:, None]
        return is_this[:, None] & self.outcomes.is_valid & same_length & same_anchor

    def near_hits(self, verdict: Verdict) -> Bool[Array, "B R"]:
        """Outcomes of this verification with the right number of accepted drafts, whatever their anchor."""
        is_this = (self.request == verdict.request) & (self.round == verdict.round)
        same_length = self.outcomes.num_accepted == verdict.num_accepted[:, None]
        return is_this[:, None] & self.outcomes.is_valid & same_length


def select_block(cache: OutcomeCache, verdict: Verdict, *, soft: bool = False) -> Proposal:
    """The prepared block for the outcome that came; its `is_hit` tells whether there was one.

    Args:
        cache: prepared blocks.
        verdict: the outcome.
        soft: without an exact match take the likeliest block of the same accepted length: its tokens follow a wrong
            anchor, which only makes them worse proposals. It does not count as a hit.

    Returns:
        One block per request; where nothing fits its tokens are `NO_TOKEN`.
    """
    hits = cache.hits(verdict)
    usable = hits
    if soft:
        # An exact match comes first, then the likeliest of the right length (rows are sorted by score).
        usable = jnp.where(jnp.any(hits, axis=1, keepdims=True), hits, cache.near_hits(verdict))
    index = jnp.argmax(usable, axis=1)

    def chosen(rows: jax.Array) -> jax.Array:
        return jnp.take_along_axis(rows, index.reshape(-1, *[1] * (rows.ndim - 1)), axis=1)[:, 0]

    block = jax.tree.map(chosen, cache.proposals)
    is_usable = jnp.any(usable, axis=1)
    trace = block.trace
    if trace is not None:
        # Nothing is proposed, so nothing may be shown or counted as if it had been.
        trace = RefineTrace(
            passes=jnp.where(is_usable[:, None, None], trace.passes, NO_TOKEN),
            num_fixed=jnp.where(is_usable[:, None], trace.num_fixed, 0),
            proxies=jnp.where(is_usable[:, None, None], trace.proxies, NO_TOKEN),
        )
    tokens = jnp.where(is_usable[:, None], block.tokens, NO_TOKEN)
    return replace(block, tokens=tokens, trace=trace, is_hit=jnp.any(hits, axis=1))
