"""What is left of a row of logits once its token is drawn."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HeadDraw:
    """The draws of T rows. Where `score` is not finite, the rest of the row means nothing.

    Attributes:
        tokens: [T], first index of the maximum of the row's scores: logits, in sampling rows divided by the temperature
            and with the row's noise added.
        score: [T], that maximum; NaN or infinite iff the row's scores hold a NaN, a +inf or nothing but -inf.
        logsumexp: [T], of the scores without the noise, or with it if asked for.
        target_logit: [T], score without the noise of the row's target; None without targets.
    """

    tokens: Int[Array, "T"]
    score: Float[Array, "T"]
    logsumexp: Float[Array, "T"]
    target_logit: Float[Array, "T"] | None
