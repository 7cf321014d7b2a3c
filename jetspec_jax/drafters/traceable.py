"""Any traceable function as a drafter: the `drafter=` hook of the public API.

(A module named `callable` would take the builtin's place in the package.)
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jetspec_jax.drafters.protocol import DraftView, StatelessDrafter
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.functional import Leaves


class CallableDrafter(StatelessDrafter):
    """Wraps `function(tokens [S], length []) -> [num_drafts]`, traced and mapped over the batch.

    `tokens[:length]` are the committed tokens. A function that is not traceable can use `jax.pure_callback`;
    inside the callback take `np.asarray` of the arguments first, since implicit transfers are refused in the loop.
    """

    def __init__(self, function: Callable, num_drafts: int):
        self.function = function
        self.num_drafts = num_drafts
        self.name = getattr(function, "__name__", type(function).__name__)

    def propose(self, leaves: Leaves, decoder: Decoder, state: Any, view: DraftView) -> tuple[Int[Array, "B G"], Any]:
        """Calls the function for each row.

        Raises:
            ValueError: the function returns another shape or no integers.
        """
        drafts = jax.vmap(self.function)(view.tokens, view.length)
        expected = (view.tokens.shape[0], self.num_drafts)
        if drafts.shape != expected or not jnp.issubdtype(drafts.dtype, jnp.integer):
            raise ValueError(
                f"drafter {self.name!r} must return {self.num_drafts} integer tokens per row, "
                f"got shape {drafts.shape[1:]} and dtype {drafts.dtype}"
            )
        return drafts.astype(jnp.int32), state
