"""Acceptance replayed from a known text: every network runs at its cost, but what it says is taken from the text.

The engine's speed at a given acceptance length can so be measured apart from any draft's quality. Nothing measured with
it says anything about acceptance. Drafted tokens are replaced after they were guessed, so the kernels and products that
guess are those of real rounds; the logits that outcomes are scored by are made certain of the text, which adds a pass
over those of one block.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jetspec_jax.decoding.draft_side import DraftSide
from jetspec_jax.decoding.refine import Guess
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import KnownOutcomes


class _ReplayingSide(DraftSide):
    """Guesses whose tokens are those of the text, or wrong ones where the draft shall err."""

    text: np.ndarray  # [S]
    is_wrong: np.ndarray  # [S]

    def guess_of_draft(self, arguments: tuple, positions: Int[Array, "B R G"], with_logprobs: bool) -> Guess:
        guess = super().guess_of_draft(arguments, positions, with_logprobs)
        return self._told(guess, positions, jnp.take(jnp.asarray(self.is_wrong), positions, mode="clip"))

    def guess_of_predictor(self, rows, start, positions: Int[Array, "B R G"], with_logprobs: bool):
        taps, guess = super().guess_of_predictor(rows, start, positions, with_logprobs)
        return taps, self._told(guess, positions, jnp.zeros(positions.shape, bool))

    def _told(self, guess: Guess, positions: Int[Array, "B R G"], is_wrong: Bool[Array, "B R G"]) -> Guess:
        true = jnp.take(jnp.asarray(self.text), positions, mode="clip")
        told = jnp.where(is_wrong, (true + 1) % self.decoder.config.vocab_size, true)
        # Never below 0, which the compiler does not know: without the guess it would leave the networks out.
        return replace(guess, tokens=jnp.where(guess.tokens < 0, guess.tokens, told))


def error_positions(first: int, until: int, accept_len: float, num_refreshes: int) -> list[int]:
    """Positions at which a replayed draft errs so that rounds commit `accept_len` tokens in the mean.

    Each refresh repairs the first error that is left; the one after the repaired ones ends the accepted prefix, and its
    position is committed by the target's own draw. So a round takes `num_refreshes + 1` errors, the last at its end.

    Example: first anchor at 9, lengths 4, 4 and one refresh: 10 (repaired), 13 (ends), 14 (repaired), 17 (ends).

    Args:
        first: position of the first anchor.
        until: no errors from here on.
        accept_len: τ to replay; more than `num_refreshes + 1`.
        num_refreshes: m of Rm.
    """
    if accept_len < num_refreshes + 2:
        raise ValueError(f"accept_len={accept_len} leaves no room for {num_refreshes} repaired errors a round")
    errors, round_, begin = [], 0, first
    while begin < until:
        round_ += 1
        end = first + int(round_ * accept_len)
        errors += [*range(begin + 1, begin + 1 + num_refreshes), end]
        begin = end
    return [position for position in errors if position < until]


def replaying(
    draft: Draft, adapter: Adapter, text: list[int], prompt_len: int, accept_len: float, drafting: DraftingConfig
) -> JetSpecPP:
    """A drafter that replays `accept_len` over `text` (prompt included); every outcome it prepares for comes true."""
    errors = error_positions(prompt_len, len(text), accept_len, drafting.refine.num_refreshes)
    drafter = JetSpecPP(draft, KnownOutcomes(adapter, [text]), drafting=drafting)
    told = {"text": np.asarray(text, np.int32), "is_wrong": np.isin(np.arange(len(text)), errors)}
    drafter.side_type = type("ReplayingSide", (_ReplayingSide,), told)
    return drafter
