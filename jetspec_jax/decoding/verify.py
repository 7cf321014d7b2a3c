"""Acceptance: a drafted token is kept iff it equals the target's own draw.

For a point-mass proposal this is the exact rule (accept with probability p(d), else draw from p without d): every
committed token is the target's draw, so no draft probability is ever needed (handbook 9.3).
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

# A drafter's way to say "no proposal here"; never equal to a draw, so the row is rejected.
NO_TOKEN = -1


def num_accepted(drafts: Int[Array, "B G"], draws: Int[Array, "B T"]) -> Int[Array, "B"]:
    """Length of the longest prefix of the drafts that equals the target's draws.

    Example: drafts [5, 7, 9], draws [5, 7, 2, 4] -> 2; the round commits draws[:3] = [5, 7, 2].

    Args:
        drafts: G drafted tokens at positions n+1 .. n+G.
        draws: the target's tokens of the G+1 verified rows, positions n+1 .. n+G+1.
    """
    matches = drafts == draws[:, : drafts.shape[1]]
    return jnp.sum(jnp.cumprod(matches.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)
