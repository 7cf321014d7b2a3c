"""Which tokens are supervised, checked before step 1: a wrong mask trains on nothing and the loss does not show it."""

from collections.abc import Iterable

import numpy as np

from train.batch import Batch

MAX_BARE_FRACTION = 0.1


def supervised(answer_mask: np.ndarray, length: np.ndarray | int) -> np.ndarray:
    """[..., S], the tokens that a draft can be trained to predict: of the answer, inside the row, not its first."""
    position = np.arange(answer_mask.shape[-1])
    return answer_mask & (position > 0) & (position < np.asarray(length)[..., None])


def check_supervision(batches: Iterable[Batch], *, max_fraction: float = MAX_BARE_FRACTION) -> None:
    """`ValueError` with an example if more than `max_fraction` of the rows have nothing to supervise."""
    num_rows = num_bare = 0
    example = ""
    for batch in batches:
        is_bare = ~supervised(batch.answer_mask, batch.length).any(axis=-1)
        num_rows += is_bare.size
        num_bare += int(is_bare.sum())
        if not example and is_bare.any():
            row = int(np.argmax(is_bare))
            head = batch.tokens[row, : min(int(batch.length[row]), 32)].tolist()
            example = (
                f"record {batch.ids[row]}: {batch.length[row]} tokens, "
                f"{int(batch.answer_mask[row].sum())} marked as answer, starts with {head}"
            )
    if num_bare > max_fraction * num_rows:
        raise ValueError(
            f"{num_bare} of the first {num_rows} rows have no supervised token (allowed: {max_fraction:.0%}); "
            f"does the chat template mark the answers? {example}"
        )
