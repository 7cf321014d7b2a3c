"""Streamed text split by where each piece came from: an accepted draft, or the target's own draw."""

import html
from collections.abc import Iterable

from jetspec_jax.outputs import StreamChunk
from jetspec_jax.text.streaming import IncrementalDetokenizer
from jetspec_jax.text.tokenizer import Tokenizer

# rich styles of the two origins, and the colours of the same in HTML.
ACCEPTED_STYLE, OWN_STYLE = "green", "bold magenta"
_ACCEPTED_CSS, _OWN_CSS = "background:#c8e6c9;color:#000", "background:#f8bbd0;color:#000"

Piece = tuple[str, bool]


class BlockText:
    """Pieces of one stream with their origin; stop strings are not applied, every delivered token is shown."""

    def __init__(self, tokenizer: Tokenizer):
        self._detokenizer = IncrementalDetokenizer(tokenizer)

    def push(self, chunk: StreamChunk) -> list[Piece]:
        """Text and whether it was an accepted draft, for each token of a chunk; empty pieces are left out.

        A character split over tokens counts for the token that completes it.
        """
        pieces = []
        for offset, token_id in enumerate(chunk.token_ids):
            pieces.append((self._detokenizer.push(token_id), offset < chunk.num_accepted))
        if chunk.output is not None:
            pieces.append((self._detokenizer.finish(), False))
        return [(text, is_accepted) for text, is_accepted in pieces if text]


def pieces_to_html(pieces: Iterable[Piece]) -> str:
    """Accepted drafts on green, the target's own tokens on pink."""
    spans = (
        f'<span style="{_ACCEPTED_CSS if is_accepted else _OWN_CSS}">{html.escape(text)}</span>'
        for text, is_accepted in pieces
    )
    return f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(spans)}</div>'
