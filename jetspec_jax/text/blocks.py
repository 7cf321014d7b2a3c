"""Streamed text split by where each piece came from: an accepted draft, or the target's own draw."""

from jetspec_jax.outputs import StreamChunk
from jetspec_jax.text.streaming import IncrementalDetokenizer
from jetspec_jax.text.tokenizer import Tokenizer

ACCEPTED_STYLE, OWN_STYLE = "green", "bold magenta"


class BlockText:
    """Pieces of one stream with their origin; stop strings are not applied, every delivered token is shown."""

    def __init__(self, tokenizer: Tokenizer):
        self._detokenizer = IncrementalDetokenizer(tokenizer)

    def push(self, chunk: StreamChunk) -> list[tuple[str, bool]]:
        """Text and whether it was an accepted draft, for each token of a chunk; empty pieces are left out.

        A character split over tokens counts for the token that completes it.
        """
        pieces = []
        for offset, token_id in enumerate(chunk.token_ids):
            pieces.append((self._detokenizer.push(token_id), offset < chunk.num_accepted))
        if chunk.output is not None:
            pieces.append((self._detokenizer.finish(), False))
        return [(text, is_accepted) for text, is_accepted in pieces if text]
