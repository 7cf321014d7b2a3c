"""What is proposed for verification, how it came about, and how it fared."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.state import DraftReport, Verdict


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RefineTrace:
    """Every pass of the refinement of a block (or of many: any leading axes).

    Attributes:
        passes: [*, P, G], tokens after each of the P = n + 1 passes.
        num_fixed: [*, P], settled positions when the pass began; drafts[:num_fixed] were not rewritten by it.
        proxies: [*, m, G], what the decoder would have drawn at each refresh.
    """

    passes: Int[Array, "*rows P G"]
    num_fixed: Int[Array, "*rows P"]
    proxies: Int[Array, "*rows m G"]

    def stretched(self, num_passes: int, num_refreshes: int) -> "RefineTrace":
        """The same with places for more passes and refreshes: the last pass repeated, its tokens as proxies.

        A block drafted on a miss may have made fewer passes than a prepared one; both must have one shape.
        """
        more = num_passes - self.passes.shape[-2]
        last, fixed = self.passes[..., -1:, :], self.num_fixed[..., -1:]
        return RefineTrace(
            passes=jnp.concatenate([self.passes, *[last] * more], axis=-2),
            num_fixed=jnp.concatenate([self.num_fixed, *[fixed] * more], axis=-1),
            proxies=jnp.concatenate([self.proxies, *[last] * (num_refreshes - self.proxies.shape[-2])], axis=-2),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Proposal:
    """A block to verify (or many: any leading axes).

    Attributes:
        tokens: [*, G], drafts; `NO_TOKEN` where there is none.
        logprobs: [*, G], log-probability its author, draft or decoder, gave each token; None if nobody asks.
        trace: how refinement got there; None for drafters that do not refine.
        is_hit: [*], taken from the outcome cache.
        mass: [*], probability that the outcome cache it was looked up in gave to all its outcomes together, the hit
            rate it expected; 0 without a cache.
    """

    tokens: Int[Array, "*rows G"]
    logprobs: Float[Array, "*rows G"] | None
    trace: RefineTrace | None
    is_hit: Bool[Array, "*rows"]
    mass: Float[Array, "*rows"]

    @classmethod
    def of_tokens(
        cls,
        tokens: Int[Array, "*rows G"],
        logprobs: Float[Array, "*rows G"] | None = None,
        trace: RefineTrace | None = None,
    ) -> "Proposal":
        """A proposal that was drafted after the verification before it."""
        rows = tokens.shape[:-1]
        return cls(tokens, logprobs, trace, jnp.zeros(rows, bool), jnp.zeros(rows, jnp.float32))


def choose(is_first: Bool[Array, "B"], first: Proposal, second: Proposal) -> Proposal:
    """Row by row the first or the second proposal."""

    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(is_first.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, first, second)


def report(proposal: Proposal, verdict: Verdict, *, refines_misses: bool, keep_trace: bool) -> DraftReport:
    """How a proposal fared in its verification.

    The prefix that pass p had right is known up to the end of what was committed: had it gone on to be right beyond the
    final block's first mistake, nobody would know.

    Args:
        proposal: the verified block.
        verdict: its verification.
        refines_misses: blocks that were not prepared are refined like prepared ones.
        keep_trace: hand the trace on.
    """
    passes = proposal.tokens[:, None] if proposal.trace is None else proposal.trace.passes  # [B, P, G]
    offsets = jnp.arange(passes.shape[-1], dtype=jnp.int32)[None, :]
    block = verdict.rows.tokens[:, 1:]
    committed = jnp.where(offsets < verdict.num_accepted[:, None], block, verdict.anchor[:, None])
    is_known = offsets <= verdict.num_accepted[:, None]
    right = (passes == committed[:, None]) & is_known[:, None]
    return DraftReport(
        is_hit=proposal.is_hit,
        mass=proposal.mass,
        is_refined=proposal.is_hit | refines_misses,
        right_by_pass=jnp.cumprod(right.astype(jnp.int32), axis=-1) > 0,
        passes=proposal.trace.passes if keep_trace and proposal.trace is not None else None,
        num_fixed=proposal.trace.num_fixed if keep_trace and proposal.trace is not None else None,
        proxies=proposal.trace.proxies if keep_trace and proposal.trace is not None else None,
    )
