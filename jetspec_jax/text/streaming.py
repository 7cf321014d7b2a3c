"""Token ids to text, one token at a time: whole characters only, and stop strings.

One class serves streamed and whole answers alike, so both give the same text. For any ids, the pieces that `push` and
`finish` return, joined, equal `tokenizer.decode(ids)` up to a stop string. If the ids end inside a character, the rest
of it comes out of `finish` as `decode` gives it (U+FFFD), streamed or not, without an error.
"""

from jetspec_jax.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"

# Bytes of a character that is still incomplete; a tokenizer shows them as one to three U+FFFD.
MAX_OPEN_BYTES = 3

# Invalid bytes can stay uncertain token after token, and must not be decoded again and again. From the last six tokens
# (each at least a byte) the last three bytes are decoded right even if the first one is in the middle of a character.
MAX_WINDOW, KEPT_WINDOW = 24, 8


class IncrementalDetokenizer:
    """Text of a growing list of ids; each token costs one or two calls of `decode` on a few ids.

    Attributes:
        stop_match: the stop string that the last pushed token completed, else `None`. If a text holds several, the one
            that starts first counts; of those that start together, the longest.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
    ):
        """Start with no text. With `include_stop` the text ends after the stop string, otherwise before it."""
        if not isinstance(stop, tuple) or not all(isinstance(text, str) and text for text in stop):
            raise ValueError(f"stop must be a tuple of non-empty strings, got {stop!r}")
        self.stop_match: str | None = None
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stop = tuple(sorted(stop, key=len, reverse=True))
        self._include_stop = include_stop
        self._pieces: list[str] = []
        self._held = ""  # certain text that could be the beginning of a stop string
        # The end of the ids: `_context_len` ids whose text is taken (decoders treat the first token of a text
        # differently, so there is always one before), then ids that end inside a character.
        self._window: list[int] = []
        self._context_len = 0
        self._window_text = ""
        self._num_taken = 0  # characters of `_window_text` that went to `_held` or out
        self._is_finished = False

    @property
    def text(self) -> str:
        """All text given out so far (not what is held back)."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """Add a token and return the text that is now certain, often none; sets `stop_match`."""
        if self._is_finished:
            raise RuntimeError(f"push({token_id}) after the text has ended")
        window = [*self._window, token_id]
        text = self._decode(window)
        # A token without text of its own (skipped or unknown) is forgotten, or it would stand where context is
        # needed. Twice, because decoders strip the space of the first token: "▁" -> "", but "▁", "▁" -> " ".
        if text == self._window_text and self._decode([token_id, token_id]) == "":
            return ""
        self._window, self._window_text = window, text
        certain_len = max(len(text) - _num_uncertain(text), self._num_taken)
        certain = text[self._num_taken : certain_len]
        self._num_taken = certain_len
        if certain and certain_len == len(text):
            self._keep_last(len(window) - self._context_len)
            self._context_len = len(self._window)
        elif len(window) > MAX_WINDOW:
            self._keep_last(KEPT_WINDOW)
            self._context_len = 0
        return self._give_out(certain, is_end=False)

    def finish(self) -> str:
        """End the text and return what was held back; a cut character comes out as U+FFFD.

        Only a stop string with U+FFFD in it can still be completed here.
        """
        if self._is_finished:
            return ""
        self._is_finished = True
        return self._give_out(self._window_text[self._num_taken :], is_end=True)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)

    def _keep_last(self, count: int) -> None:
        """Forget all but the last `count` ids of the window; the number of characters not taken stays the same."""
        num_open = len(self._window_text) - self._num_taken
        self._window = self._window[-count:]
        self._window_text = self._decode(self._window)
        self._num_taken = len(self._window_text) - num_open

    def _give_out(self, certain: str, *, is_end: bool) -> str:
        """Look for a stop string in the held and the new text, and return what cannot be part of one."""
        text = self._held + certain
        if match := self._find_stop(text):
            start, self.stop_match = match
            text = text[: start + len(self.stop_match)] if self._include_stop else text[:start]
            self._is_finished = True
            is_end = True
        held_len = 0 if is_end else self._beginning_len(text)
        piece, self._held = text[: len(text) - held_len], text[len(text) - held_len :]
        if piece:
            self._pieces.append(piece)
        return piece

    def _find_stop(self, text: str) -> tuple[int, str] | None:
        """First stop string in `text`; `min` takes the longest of a tie, which comes first in `_stop`."""
        found = [(text.find(stop), stop) for stop in self._stop]
        return min((match for match in found if match[0] >= 0), key=lambda match: match[0], default=None)

    def _beginning_len(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string: "so" for "also" and the stop "song"."""
        longest = min(len(text), len(self._stop[0]) - 1) if self._stop else 0
        ends = (text[-length:] for length in range(longest, 0, -1))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self._stop)), 0)


def _num_uncertain(text: str) -> int:
    """Trailing U+FFFD that later bytes can still turn into a character."""
    end = text[-MAX_OPEN_BYTES:]
    return len(end) - len(end.rstrip(REPLACEMENT))
