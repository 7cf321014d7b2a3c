"""What is supervised, for people to look at before they train."""

from itertools import groupby, islice

import numpy as np

from jetspec_jax.text.tokenizer import Tokenizer
from train.loader import Source
from train.supervision import supervised


def mask_report(source: Source, tokenizer: Tokenizer, *, num_rows: int = 256) -> str:
    """Text for people: one decoded row with its supervised part in [[ ]], and counts over the first `num_rows` rows."""
    rows = list(islice((source[i] for i in range(len(source))), num_rows))
    if not rows:
        raise ValueError("the source is empty")
    masks = [supervised(np.asarray(row["answer_mask"]), row["length"]) for row in rows]
    example = next((i for i, mask in enumerate(masks) if mask.any()), 0)
    num_tokens = sum(int(row["length"]) for row in rows)
    num_supervised = sum(int(mask.sum()) for mask in masks)
    num_bare = sum(not mask.any() for mask in masks)
    return "\n".join(
        [
            f"record {rows[example]['id']}, supervised part in [[ ]]:",
            _marked(np.asarray(rows[example]["tokens"]), masks[example], int(rows[example]["length"]), tokenizer),
            f"first {len(rows)} rows: {num_tokens} tokens, {num_supervised} supervised "
            f"({num_supervised / max(num_tokens, 1):.1%}), {num_bare} rows without any",
        ]
    )


def _marked(tokens: np.ndarray, mask: np.ndarray, length: int, tokenizer: Tokenizer) -> str:
    parts = []
    for is_supervised, run in groupby(range(length), key=lambda position: bool(mask[position])):
        text = tokenizer.decode([int(tokens[position]) for position in run], skip_special_tokens=False)
        parts.append(f"[[{text}]]" if is_supervised else text)
    return "".join(parts)
