"""The one end-of-text walk: committed tokens are looked at one by one, in order, and this decides where text ends.

Ids, text, logprobs, usage, stats and the cache length all take its answer, so a token after the end can appear in none
of them, however many tokens a round commits (bug cases C09 to C11).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from jetspec_jax.decoding.row_params import end_ids
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.text.streaming import IncrementalDetokenizer

FinishReason = Literal["stop", "length", "error", "cancelled"]


@dataclass
class TextWalk:
    """End-of-text decisions of one request.

    Attributes:
        params: the request's options.
        eos_token_ids: the model's end-of-text ids.
        max_new_tokens: the request's limit or what the context leaves, whichever is smaller.
        detokenizer: turns ids into text; None for requests that want ids only (then `params.stop` must be empty).
        prompt_len: tokens, to name absolute positions in errors.
        token_ids: tokens of the text so far, the ending id included.
        finish_reason: None while the text goes on.
        stop_reason: the id or string that ended the text.
        error: what went wrong, for `finish_reason == "error"`.
    """

    params: SamplingParams
    eos_token_ids: Sequence[int]
    max_new_tokens: int
    detokenizer: IncrementalDetokenizer | None
    prompt_len: int
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def __post_init__(self):
        if self.params.stop and self.detokenizer is None:
            raise ValueError("stop strings need a tokenizer")
        self._end_ids = frozenset(end_ids(self.params, self.eos_token_ids))
        self._text: list[str] = []
        if self.max_new_tokens == 0:
            self._finish("length")

    @property
    def is_finished(self) -> bool:
        """Whether the text has ended."""
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """Text that is certain so far; all of it once finished."""
        return "".join(self._text)

    def advance(self, tokens: Sequence[int], finite: Sequence[bool]) -> tuple[int, str]:
        """Walks newly committed tokens until they or the text end.

        Args:
            tokens: committed tokens in order.
            finite: whether the logits each was drawn from were usable.

        Returns:
            How many of the tokens belong to the text, and the text that became certain.
        """
        delivered, start = 0, len(self._text)
        for token, is_finite in zip(tokens, finite, strict=True):
            if self.is_finished:
                break
            if not is_finite:
                position = self.prompt_len + len(self.token_ids)
                self.error = f"logits for position {position} are not finite, from the target or after filters"
                self._finish("error")
                break
            self._take(int(token))
            delivered += 1
        return delivered, "".join(self._text[start:])

    def cancel(self) -> str:
        """Ends the text where it is; returns what had been held back."""
        start = len(self._text)
        if not self.is_finished:
            self._finish("cancelled")
        return "".join(self._text[start:])

    def _take(self, token: int) -> None:
        self.token_ids.append(token)
        is_end = token in self._end_ids
        if self.detokenizer is not None and (not is_end or self.params.include_stop):
            self._text.append(self.detokenizer.push(token))
            if self.detokenizer.stop_match is not None:
                self.stop_reason = self.detokenizer.stop_match
                self._finish("stop")
                return
        if is_end:
            self.stop_reason = token
            self._finish("stop")
        elif len(self.token_ids) >= self.max_new_tokens:
            self._finish("length")

    def _finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        if self.detokenizer is None:
            return
        already_matched = self.detokenizer.stop_match
        self._text.append(self.detokenizer.finish())
        # The flush may complete a stop string that ends in a character cut by the token budget.
        if reason == "length" and self.detokenizer.stop_match != already_matched:
            self.finish_reason, self.stop_reason = "stop", self.detokenizer.stop_match
