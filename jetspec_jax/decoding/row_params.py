"""Sampling options of a batch as device arrays, and the static part that shapes the compiled program."""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from jetspec_jax.sampling_params import SamplingParams

_FP32 = np.finfo(np.float32)
# Hotter is as uniform, but its reciprocal (XLA divides by multiplying) would be 0 and turn -inf logits into NaN.
_HOTTEST = 1e30


@dataclass(frozen=True, kw_only=True)
class SamplingSpec:
    """What the compiled program must be able to do for a batch; programs without an option do not pay for it.

    Attributes:
        samples: some row has a temperature above 0.
        truncates: some sampling row uses top-k, top-p or min-p; `uses_top_k`, `uses_top_p`: that one.
        penalizes, biases, suppresses: some row uses penalties, `logit_bias`, `min_new_tokens`.
        num_logprobs: alternatives to return per token; None returns no logprobs.
        logits_processors: user functions, the same for the whole batch.
    """

    samples: bool = False
    truncates: bool = False
    uses_top_k: bool = False
    uses_top_p: bool = False
    penalizes: bool = False
    biases: bool = False
    suppresses: bool = False
    num_logprobs: int | None = None
    logits_processors: tuple[Callable, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Nothing but a temperature: a token and the check of its logits are all that is wanted of a row."""
        return self == SamplingSpec(samples=self.samples)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class RowParams:
    """Per-request options.

    Attributes:
        key: one PRNG key per request; the noise of position t is keyed by `fold_in(key, t)`.
        temperature: 0 for greedy rows.
        top_k, top_p, min_p: 0, 1, 0 keep everything.
        repetition_penalty, presence_penalty, frequency_penalty: 1, 0, 0 change nothing.
        min_new_tokens: rows shorter than this cannot draw `end_ids`.
        end_ids: [B, E], end-of-text and stop ids, padded with ids beyond the vocabulary.
        bias_ids, bias_values: [B, J], padded likewise.
    """

    key: Key[Array, "B"]
    temperature: Float[Array, "B"]
    top_k: Int[Array, "B"]
    top_p: Float[Array, "B"]
    min_p: Float[Array, "B"]
    repetition_penalty: Float[Array, "B"]
    presence_penalty: Float[Array, "B"]
    frequency_penalty: Float[Array, "B"]
    min_new_tokens: Int[Array, "B"]
    end_ids: Int[Array, "B E"]
    bias_ids: Int[Array, "B J"]
    bias_values: Float[Array, "B J"]


def sampling_spec(requests: Sequence[SamplingParams]) -> SamplingSpec:
    """The static spec that covers a batch.

    Raises:
        ValueError: requests with different logits processors share a batch.
    """
    processors = {request.logits_processors for request in requests}
    if len(processors) > 1:
        raise ValueError("requests of one batch must have the same logits_processors")
    sampling = [r for r in requests if not r.is_greedy]
    counts = [r.logprobs for r in requests if r.logprobs is not None]
    return SamplingSpec(
        samples=bool(sampling),
        uses_top_k=any(bool(r.top_k) for r in sampling),
        uses_top_p=any(r.top_p < 1 for r in sampling),
        truncates=any(r.top_k or r.top_p < 1 or r.min_p > 0 for r in sampling),
        penalizes=any(r.repetition_penalty != 1 or r.presence_penalty or r.frequency_penalty for r in requests),
        biases=any(r.logit_bias for r in requests),
        suppresses=any(r.min_new_tokens > 0 for r in requests),
        num_logprobs=max(counts) if counts else None,
        logits_processors=processors.pop(),
    )


def end_ids(request: SamplingParams, eos_token_ids: Sequence[int]) -> tuple[int, ...]:
    """Ids that end the text of a request."""
    eos = () if request.ignore_eos else tuple(eos_token_ids)
    return tuple(dict.fromkeys((*eos, *request.stop_token_ids)))


def row_params(
    requests: Sequence[SamplingParams], *, eos_token_ids: Sequence[int], vocab_size: int, device: jax.Device
) -> RowParams:
    """Puts the options of a batch on the device. Sampling requests without a seed get a fresh one each."""
    # A width that is a power of two, so that a longer list of ids rarely means a new program.
    ends = _padded([end_ids(r, eos_token_ids) for r in requests], vocab_size, np.int32)
    bias_ids = _padded([tuple(r.logit_bias) for r in requests], vocab_size, np.int32)
    bias_values = _padded([tuple(_fp32(bias) for bias in r.logit_bias.values()) for r in requests], 0.0, np.float32)

    def column(read, dtype) -> np.ndarray:
        values = [read(request) for request in requests]
        return np.array(values if dtype is np.int32 else [_fp32(value) for value in values], dtype)

    columns = {
        "temperature": column(lambda r: 0.0 if r.is_greedy else min(r.temperature, _HOTTEST), np.float32),
        "top_k": column(lambda r: r.top_k or 0, np.int32),
        "top_p": column(lambda r: max(r.top_p, float(_FP32.tiny)), np.float32),  # 0 would keep no token at all
        "min_p": column(lambda r: r.min_p, np.float32),
        "repetition_penalty": column(lambda r: r.repetition_penalty, np.float32),
        "presence_penalty": column(lambda r: r.presence_penalty, np.float32),
        "frequency_penalty": column(lambda r: r.frequency_penalty, np.float32),
        "min_new_tokens": column(lambda r: r.min_new_tokens, np.int32),
        "end_ids": ends,
        "bias_ids": bias_ids,
        "bias_values": bias_values,
    }
    seeds = [_seed_of(request) for request in requests]
    # Seeds have 63 bits: the low half makes the key, the high half is folded in.
    columns["key"] = np.array([(seed & 0xFFFFFFFF, seed >> 32) for seed in seeds], np.uint32)
    # One transfer and one dispatch before the first token of every call, not one for each option.
    layout = tuple((name, str(values.dtype), values.shape[1:]) for name, values in columns.items())
    words = np.concatenate([values.reshape(len(requests), -1).view(np.uint32) for values in columns.values()], axis=1)
    return _of_words(jax.device_put(words, device), layout)


@partial(jax.jit, static_argnums=1)
def _of_words(words: UInt32[Array, "B W"], layout: tuple[tuple[str, str, tuple[int, ...]], ...]) -> RowParams:
    """Options whose bits lie side by side; `layout` has the name, dtype and shape of a row of each."""
    columns, start = {}, 0
    for name, dtype, shape in layout:
        bits = words[:, start : start + math.prod(shape)].reshape(-1, *shape)
        columns[name] = jax.lax.bitcast_convert_type(bits, dtype)
        start += math.prod(shape)
    low, high = jnp.split(columns.pop("key"), 2, axis=1)
    key = jax.vmap(lambda seed, data: jax.random.fold_in(jax.random.key(seed), data))(low[:, 0], high[:, 0])
    return RowParams(key=key, **columns)


def _fp32(value: float) -> float:
    """A number within the range of fp32, where 1e39 would become infinite; -inf (a banned token) stays."""
    return value if value == -np.inf else float(np.clip(value, -_FP32.max, _FP32.max))


def _seed_of(request: SamplingParams) -> int:
    """The request's seed. Greedy text has no noise, but drafts draw input noise, so it gets a fixed one."""
    if request.seed is not None:
        return request.seed
    return 0 if request.is_greedy else secrets.randbits(63)


def _padded(rows: Sequence[Sequence], fill, dtype) -> np.ndarray:
    width = max(1, *(len(row) for row in rows))
    width = 1 << (width - 1).bit_length()
    return np.array([(*row, *[fill] * (width - len(row))) for row in rows], dtype)
