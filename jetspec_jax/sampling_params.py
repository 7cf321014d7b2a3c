"""Options of one request, validated where the user makes them."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

# Below this temperature every code path is greedy. One constant for the whole project (bug case C24).
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to draw tokens and when to stop; the defaults are greedy decoding.

    The order of the filters is: repetition, presence and frequency penalties, `logit_bias`, `min_new_tokens`,
    `logits_processors`, then (when sampling) division by the temperature, top-k, top-p, min-p. All act on the
    target's own logits in fp32, so speculation cannot change what they do.

    Attributes:
        max_new_tokens: most tokens to generate; None goes to the end of the context.
        min_new_tokens: end-of-text and stop ids are not drawn before this many tokens.
        temperature: 0 (anything below 1e-5) is greedy.
        top_k: keep the k likeliest tokens (all ties of the k-th are kept); None or 0 keeps all.
        top_p: keep the smallest set of likeliest tokens with at least this mass, in (0, 1].
        min_p: drop tokens less likely than this fraction of the likeliest, in [0, 1).
        seed: the request's seed; None draws a fresh one. Same seed, same text, whatever the batch or block size.
        stop: strings that end the text.
        stop_token_ids: ids that end the text, in addition to the model's end-of-text ids.
        ignore_eos: do not stop at the model's end-of-text ids.
        include_stop: keep the stop string in the text.
        repetition_penalty: logits of tokens in prompt or output are divided (if positive) or multiplied by this.
        presence_penalty, frequency_penalty: subtracted once, or per occurrence, for tokens of the output.
        logit_bias: token id -> value added to its logit.
        logprobs: number of likeliest alternatives to return with each token; None returns no logprobs.
        logits_processors: traceable functions `(tokens [S], length [], logits [V]) -> logits [V]`; only
            `tokens[:length]` (prompt, output and the draft before this row) may influence the result.
    """

    max_new_tokens: int | None = 256
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | tuple[str, ...] | list[str] | None = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    logits_processors: tuple[Callable, ...] | list[Callable] = ()

    def __post_init__(self):
        if not isinstance(self.stop, str | Sequence | None):
            raise ValueError(f"stop must be a string or a list of strings, got {self.stop!r}")
        stop = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if any(not isinstance(text, str) or not text for text in stop):
            raise ValueError(f"stop must hold non-empty strings, got {stop!r}")
        object.__setattr__(self, "stop", stop)
        for name in ("stop_token_ids", "logits_processors"):
            if not isinstance(getattr(self, name), Sequence):
                raise ValueError(f"{name} must be a list or tuple, got {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not isinstance(self.logit_bias, Mapping):
            raise ValueError(f"logit_bias must map token ids to numbers, got {self.logit_bias!r}")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        if self.max_new_tokens is not None:
            _check_int("max_new_tokens", self.max_new_tokens, 0)
        _check_int("min_new_tokens", self.min_new_tokens, 0)
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens={self.min_new_tokens} exceeds max_new_tokens={self.max_new_tokens}")
        _check_number("temperature", self.temperature, 0.0, math.inf)
        if self.top_k is not None:
            _check_int("top_k", self.top_k, 0)
        _check_number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_number("min_p", self.min_p, 0.0, 1.0, high_open=True)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, low_open=True)
        _check_number("presence_penalty", self.presence_penalty, -math.inf, math.inf)
        _check_number("frequency_penalty", self.frequency_penalty, -math.inf, math.inf)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, 2**63 - 1)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, 100)
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0)
        for token_id, bias in self.logit_bias.items():
            _check_int("logit_bias", token_id, 0)
            _check_number(f"logit_bias[{token_id}]", bias, -math.inf, math.inf, allow_low=True)
        for processor in self.logits_processors:
            if not (callable(processor) and isinstance(processor, Hashable)):
                raise ValueError(f"logits_processors must be hashable callables, got {processor!r}")

    @property
    def is_greedy(self) -> bool:
        """Whether tokens are arg-max."""
        return self.temperature < GREEDY_BELOW

    def check_vocab(self, vocab_size: int) -> None:
        """Refuses token ids that the target does not have.

        Raises:
            ValueError: naming the field and the id.
        """
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias)):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise ValueError(f"{name} holds token id {token_id}, but the vocabulary has {vocab_size} ids")


def sampling_params(params: SamplingParams | None = None, **options: Any) -> SamplingParams:
    """Params from an object or from keyword options, not both.

    Raises:
        ValueError: unknown option (named, with the known ones), or both forms given.
    """
    if params is not None and options:
        raise ValueError(f"give SamplingParams or keyword options, not both (got {sorted(options)})")
    known = [f.name for f in fields(SamplingParams)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"unknown sampling option {', '.join(unknown)}; known: {', '.join(known)}")
    return params if params is not None else SamplingParams(**options)


def _check_int(name: str, value: Any, low: int, high: int = 2**31 - 1) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if not low <= int(value) <= high:
        raise ValueError(f"{name} must be in {low}..{high}, got {value}")


def _check_number(
    name: str, value: Any, low: float, high: float, *, low_open=False, high_open=False, allow_low=False
) -> None:
    """Refuses non-numbers, NaN, and values outside the interval; infinities only as an allowed lower end."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {value!r}")
    is_low_inf = allow_low and value == -math.inf
    outside = value < low or value > high or (low_open and value == low) or (high_open and value == high)
    if math.isnan(value) or (math.isinf(value) and not is_low_inf) or (outside and not is_low_inf):
        left, right = "(" if low_open else "[", ")" if high_open else "]"
        raise ValueError(f"{name} must be in {left}{low}, {high}{right}, got {value}")
