"""Repetition loops: looping text makes the acceptance length look wonderful, so measurements cut it (handbook 8.2).

Generation itself is never cut.
"""

from collections.abc import Sequence
from typing import NamedTuple

SPAN, COPIES = 64, 3


def loop_onset(token_ids: Sequence[int], *, span: int = SPAN, copies: int = COPIES) -> int | None:
    """Where the text starts to loop: None unless its last `span` tokens occur `copies` times without overlap.

    The onset is the start of the earliest copy in the chain of non-overlapping copies that is counted backwards from
    the end, each copy taken as late as possible.

    Example: span 2, copies 3, text [9, 1, 2, 1, 2, 1, 2] -> 1.
    """
    ids = list(token_ids)
    if len(ids) < span * copies:
        return None
    tail = ids[-span:]
    start, found, onset = len(ids) - span, 1, len(ids) - span
    while start >= span:
        previous = next((s for s in range(start - span, -1, -1) if ids[s : s + span] == tail), None)
        if previous is None:
            break
        start, found, onset = previous, found + 1, previous
    return onset if found >= copies else None


class RoundCount(NamedTuple):
    """Rounds and the tokens they delivered."""

    rounds: int
    tokens: int


def before_onset(committed: Sequence[int], token_ids: Sequence[int], *, onset: int | None = None) -> RoundCount:
    """Rounds and tokens of a text up to the start of its loop; all of them if it does not loop.

    Args:
        committed: delivered tokens per round; the first generated token belongs to no round.
        token_ids: the text.
        onset: where the loop starts; None looks for it.
    """
    onset = loop_onset(token_ids) if onset is None else onset
    counted = len(token_ids) if onset is None else onset
    position, rounds, tokens = 1, 0, 0
    for count in committed:
        if position >= counted:
            break
        rounds, tokens = rounds + 1, tokens + min(count, counted - position)
        position += count
    return RoundCount(rounds, tokens)
