"""What generation returns."""

from dataclasses import dataclass
from typing import Any

from jetspec_jax.decoding.round_trace import RoundTrace
from jetspec_jax.decoding.stats import DecodeStats
from jetspec_jax.decoding.walk import FinishReason, TextWalk


@dataclass(frozen=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class TokenLogprob:
    """Natural-log probabilities around one generated token.

    Attributes:
        token_id: the token.
        logprob: under the target's own distribution (no filters, temperature 1).
        processed_logprob: after filters and temperature; 0 when greedy.
        top: likeliest tokens under the target's own distribution, likeliest first; the token itself is added at the
            end if it is not among them.
    """

    token_id: int
    logprob: float
    processed_logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class GenerationOutput:
    """One finished request.

    Attributes:
        token_ids: generated ids, the id that ended the text included.
        text: generated text, without the stop string and special tokens unless asked for.
        finish_reason: `stop`, `length`, `error` or `cancelled`.
        stop_reason: the id or string that ended the text.
        error: what went wrong when `finish_reason == "error"`; tokens before it are delivered.
        prompt_token_ids: the prompt as the target saw it.
        logprobs: one entry per generated id, None unless asked for.
        usage: token counts.
        stats: rounds, acceptance and times.
    """

    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    stop_reason: int | str | None
    error: str | None
    prompt_token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    usage: Usage
    stats: DecodeStats

    @classmethod
    def of_walk(
        cls, prompt: list[int], walk: TextWalk, logprobs: list[TokenLogprob], stats: DecodeStats
    ) -> "GenerationOutput":
        """What a finished walk amounts to."""
        return cls(
            token_ids=walk.token_ids,
            text=walk.text,
            finish_reason=walk.finish_reason,
            stop_reason=walk.stop_reason,
            error=walk.error,
            prompt_token_ids=prompt,
            logprobs=None if walk.params.logprobs is None else logprobs,
            usage=Usage(len(prompt), len(walk.token_ids)),
            stats=stats,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types."""
        logprobs = None if self.logprobs is None else [dict(entry.__dict__) for entry in self.logprobs]
        usage = {**self.usage.__dict__, "total_tokens": self.usage.total_tokens}
        return {**self.__dict__, "logprobs": logprobs, "usage": usage, "stats": self.stats.to_dict()}


@dataclass(frozen=True)
class StreamChunk:
    """New text of one request after one round.

    Attributes:
        index: which prompt of the call.
        text: text that became certain; joined over chunks it is the output's text.
        token_ids: the round's tokens.
        num_accepted: how many of them, from the first on, were accepted drafts.
        output: the finished request, with its last chunk only.
        trace: how the round's block was drafted and refined, None unless asked for (`DraftingConfig.keep_trace`).
    """

    index: int
    text: str
    token_ids: list[int]
    num_accepted: int
    output: GenerationOutput | None
    trace: RoundTrace | None = None
