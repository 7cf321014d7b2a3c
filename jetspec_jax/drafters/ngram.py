"""Prompt lookup: propose what followed the last tokens the previous time they occurred in the text."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jetspec_jax.decoding.verify import NO_TOKEN
from jetspec_jax.drafters.protocol import DraftView, StatelessDrafter
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.functional import Leaves


class NgramDrafter(StatelessDrafter):
    """Looks for the longest suffix of `min_ngram..max_ngram` tokens that occurred before; the latest match wins.

    Example: tokens [5, 6, 7, 8, 5, 6], two drafts -> the suffix [5, 6] occurred at 0, proposes [7, 8].
    """

    name = "ngram"

    def __init__(self, num_drafts: int = 8, *, min_ngram: int = 2, max_ngram: int = 4):
        if num_drafts < 1 or not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"need num_drafts >= 1 <= min_ngram <= max_ngram, got {num_drafts}, {min_ngram}, {max_ngram}"
            )
        self.num_drafts = num_drafts
        self.min_ngram, self.max_ngram = min_ngram, max_ngram

    def propose(self, leaves: Leaves, decoder: Decoder, state: Any, view: DraftView) -> tuple[Int[Array, "B G"], Any]:
        """Proposals of each row; `NO_TOKEN` without a match."""
        return jax.vmap(self._propose_row)(view.tokens, view.length), state

    def _propose_row(self, tokens: Int[Array, "S"], length: Int[Array, ""]) -> Int[Array, "G"]:
        # match_len[e]: how many tokens before slot e equal the tokens before slot `length`.
        slots = jnp.arange(tokens.shape[0], dtype=jnp.int32)
        match_len = jnp.zeros_like(slots)
        is_run = slots < length  # a continuation must exist, so the match ends before the text does
        for back in range(1, self.max_ngram + 1):
            previous = jnp.take(tokens, slots - back, mode="clip")
            suffix = jnp.take(tokens, length - back, mode="clip")
            is_run &= (slots >= back) & (length > back) & (previous == suffix)
            match_len += is_run
        # Longest first, then latest: both in one key.
        best = jnp.argmax(match_len * tokens.shape[0] + slots * (match_len > 0))
        # A continuation that reaches the end of the text goes round: [1, 2, 1, 2] proposes 1, 2, 1, 2, ...
        period = jnp.maximum(length - best, 1)
        source = best + jnp.arange(self.num_drafts, dtype=jnp.int32) % period
        drafts = jnp.take(tokens, source, mode="clip")
        return jnp.where(match_len[best] >= self.min_ngram, drafts, NO_TOKEN).astype(jnp.int32)
