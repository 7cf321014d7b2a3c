"""What a training step eats: token rows and which of their tokens are the answer."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Bool, Int32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Rows of one step; numpy on the host, global arrays split over axis "data" on the devices.

    Attributes:
        tokens: [B, S], garbage at and after `length`.
        answer_mask: [B, S], True at the tokens of the answer, its end-of-turn token included. It belongs to the token
            itself, not to the position that predicts it.
        length: [B], tokens of the row.
        ids: [B], the record each row is.
    """

    tokens: Int32[Array | np.ndarray, "B S"]
    answer_mask: Bool[Array | np.ndarray, "B S"]
    length: Int32[Array | np.ndarray, "B"]
    ids: Int32[Array | np.ndarray, "B"]
