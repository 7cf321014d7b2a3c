"""Plain decoding: no drafts, one token a round. The baseline, through the same code."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from jetspec_jax.drafters.protocol import DraftView, StatelessDrafter
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.functional import Leaves


class AutoregressiveDrafter(StatelessDrafter):
    """Proposes nothing."""

    name = "autoregressive"
    num_drafts = 0

    def propose(self, leaves: Leaves, decoder: Decoder, state: Any, view: DraftView) -> tuple[Int[Array, "B G"], Any]:
        """An empty block."""
        return jnp.zeros((view.tokens.shape[0], 0), jnp.int32), state
