"""Acceptance replayed from a known text: every network runs at its cost, but what it says is taken from the text.

The engine's speed at a given acceptance length can so be measured apart from any draft's quality. Nothing measured with
it says anything about acceptance.
"""

from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import PeekingJetSpecPP, PeekingPredictor


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
    return PeekingJetSpecPP(
        draft, PeekingPredictor(adapter, [text]), drafting=drafting, texts=[text], wrong_at=errors, runs_draft=True
    )
