"""The target answers prompts by the thousand: plain decoding in many slots, refilled as answers end.

Training text must be the target's own (handbook 1.4). Throughput is all that counts here: no drafts, one token a step
for every slot, several steps per call, and a finished slot takes the next prompt. The draw is the library's own
(`decoding/sampling.py`), so an answer is the text that `generate` gives for the same prompt, temperature and seed.
"""

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jetspec_jax.decoding.filters import Prefix
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec, row_params
from jetspec_jax.decoding.sampling import draw
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.functional import place, split
from jetspec_jax.models.target import Target
from jetspec_jax.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes of the engine.

    Attributes:
        num_slots: answers decoded together.
        max_prompt_len: longest prompt, tokens; longer ones are refused.
        max_new_tokens: longest answer, tokens.
        steps_per_call: decode steps between two looks at what has ended.
        prompts_per_call: prompts that enter together.
    """

    num_slots: int = 1024
    max_prompt_len: int = 256
    max_new_tokens: int = 384
    steps_per_call: int = 32
    prompts_per_call: int = 128

    @property
    def capacity(self) -> int:
        """Positions per slot, a multiple of 64."""
        return -(-(self.max_prompt_len + self.max_new_tokens + 1) // 64) * 64


@dataclass(frozen=True)
class Answer:
    """One answered prompt.

    Attributes:
        index: of the prompt in the list that was given.
        token_ids: the answer, its end-of-turn token included if it was reached.
        is_complete: whether the end of turn was reached before the limit.
    """

    index: int
    token_ids: np.ndarray
    is_complete: bool


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Slots:
    """Device state of all slots, donated each call.

    Attributes:
        tokens: prompt and answer so far, garbage from `length` on.
        length: known tokens; the last one has not been fed to the target.
        limit: length at which the answer is cut.
        is_done: nothing to do in this slot.
        is_complete: the last token ended the turn.
        key: one PRNG key a slot, that of its request.
        temperature: of its request.
        cache: the target's keys and values; its own length is not looked at.
    """

    tokens: Int[Array, "N S"]
    length: Int[Array, "N"]
    limit: Int[Array, "N"]
    is_done: Bool[Array, "N"]
    is_complete: Bool[Array, "N"]
    key: Key[Array, "N"]
    temperature: Float[Array, "N"]
    cache: KVCache


class AnswerEngine:
    """Compiled once for greedy and once for sampled or mixed answers; `answers` may be called many times.

    Args:
        target: the model.
        end_ids: tokens that end an answer.
        config: sizes.
        device: where it runs; None is the first device.
    """

    def __init__(self, target: Target, end_ids: Sequence[int], config: EngineConfig, device: jax.Device | None = None):
        limit = target.config.max_position_embeddings
        if config.max_prompt_len + config.max_new_tokens > limit:
            raise ValueError(
                f"max_prompt_len={config.max_prompt_len} + max_new_tokens={config.max_new_tokens} exceed the "
                f"target's context of {limit}"
            )
        self.config = config
        self.device = jax.local_devices()[0] if device is None else device
        self.end_ids = tuple(end_ids)
        self._definition, leaves = split(target)
        self._leaves = place(leaves, self.device)
        self._vocab_size, self._dtype = target.config.vocab_size, target.dtype
        self._admit = jax.jit(self._admit_program, donate_argnums=(1,), static_argnums=(6,))
        self._advance = jax.jit(self._advance_program, donate_argnums=(1,), static_argnums=(3,))

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        temperatures: Sequence[float] = (0.0,),
        seed: int = 0,
        done: Collection[int] = (),
        max_seconds: float | None = None,
    ) -> Iterator[Answer]:
        """Answers prompts, yielding answers as they end (short ones first).

        Args:
            prompts: token ids, the chat template applied.
            temperatures: prompt i is answered at temperature i modulo their number; 0 is greedy.
            seed: the answer to prompt i is drawn with seed `seed + i`.
            done: prompts that are not answered (again).
            max_seconds: no prompt enters after this time; what is in a slot is finished.

        Raises:
            ValueError: an empty prompt, or one longer than `max_prompt_len`.
        """
        for index, prompt in enumerate(prompts):
            if not 0 < len(prompt) <= self.config.max_prompt_len:
                raise ValueError(f"prompt {index} has {len(prompt)} tokens, expected 1..{self.config.max_prompt_len}")
        began, waiting = time.monotonic(), deque(sorted(set(range(len(prompts))) - set(done)))
        requests = [
            SamplingParams(temperature=temperatures[index % len(temperatures)], seed=seed + index)
            for index in range(len(prompts))
        ]
        # All keys in one call: made group by group they would cost more than the prompts themselves.
        everything = self._params(requests)
        spec = SamplingSpec(samples=any(temperature > 0 for temperature in temperatures))
        slots, owner = self._empty(), np.full(self.config.num_slots, -1)
        params = self._params([SamplingParams(temperature=0.0)] * self.config.num_slots)
        while True:
            if max_seconds is not None and time.monotonic() - began > max_seconds:
                waiting.clear()
            slots = self._refill(slots, owner, waiting, prompts, everything, spec)
            if (owner < 0).all():
                return
            slots = self._advance(self._leaves, slots, params, spec)
            yield from self._collect(slots, owner, prompts)

    def _empty(self) -> Slots:
        num_slots, capacity = self.config.num_slots, self.config.capacity
        none = np.zeros(num_slots, np.int32)
        # Committed, as the results of the programs are: otherwise the second call would compile anew.
        with jax.default_device(self.device):
            slots = Slots(
                tokens=jnp.zeros((num_slots, capacity), jnp.int32),
                length=jnp.asarray(none + 1),
                limit=jnp.asarray(none),
                is_done=jnp.ones(num_slots, bool),
                is_complete=jnp.zeros(num_slots, bool),
                key=jax.random.split(jax.random.key(0), num_slots),
                temperature=jnp.zeros(num_slots, jnp.float32),
                cache=self._definition.merge(self._leaves).init_cache(num_slots, capacity),
            )
            return jax.device_put(slots, self.device)

    def _refill(self, slots: Slots, owner: np.ndarray, waiting: deque, prompts, everything: RowParams, spec) -> Slots:
        """Gives free slots to waiting prompts; `owner` tells which prompt a slot answers, -1 for none."""
        free = deque(np.flatnonzero(owner < 0).tolist())
        group_size, width = self.config.prompts_per_call, self.config.max_prompt_len
        while free and waiting:
            group = [waiting.popleft() for _ in range(min(group_size, len(free), len(waiting)))]
            # Unused rows of the group point beyond the last slot: their writes are dropped.
            where = np.full(group_size, self.config.num_slots, np.int32)
            tokens, lengths = np.zeros((group_size, width), np.int32), np.ones(group_size, np.int32)
            for row, index in enumerate(group):
                where[row] = free.popleft()
                owner[where[row]] = index
                tokens[row, : len(prompts[index])] = prompts[index]
                lengths[row] = len(prompts[index])
            members = np.array([*group, *[group[0]] * (group_size - len(group))])
            params = jax.tree.map(lambda column: column[members], everything)  # noqa: B023 - called at once
            slots = self._admit(self._leaves, slots, tokens, lengths, where, params, spec)
        return slots

    def _collect(self, slots: Slots, owner: np.ndarray, prompts) -> Iterator[Answer]:
        is_done, is_complete, length = jax.device_get((slots.is_done, slots.is_complete, slots.length))
        ended = np.flatnonzero(is_done & (owner >= 0))
        if len(ended) == 0:
            return
        tokens = jax.device_get(slots.tokens)
        for slot in ended:
            index = int(owner[slot])
            owner[slot] = -1
            yield Answer(index, tokens[slot, len(prompts[index]) : length[slot]].copy(), bool(is_complete[slot]))

    def _params(self, requests: Sequence[SamplingParams]) -> RowParams:
        return row_params(requests, eos_token_ids=self.end_ids, vocab_size=self._vocab_size, device=self.device)

    def _admit_program(
        self,
        leaves,
        slots: Slots,
        prompts: Int[Array, "P W"],
        prompt_len: Int[Array, "P"],
        where: Int[Array, "P"],
        params: RowParams,
        spec: SamplingSpec,
    ) -> Slots:
        """Runs prompts, draws the first token of each answer, and puts all that into the slots `where`."""
        target: Target = self._definition.merge(leaves)
        group, width = prompts.shape
        x, _, cache = target(prompts, target.init_cache(group, width))
        last = jnp.take_along_axis(x, prompt_len[:, None, None] - 1, axis=1)
        prefix = Prefix(prompts, prompt_len[:, None], prompt_len)
        first = draw(target.logits(last), prefix, params, spec).tokens[:, 0]
        rows = jnp.pad(prompts, ((0, 0), (0, slots.tokens.shape[1] - width)))
        rows = rows.at[jnp.arange(group), prompt_len].set(first)
        is_end, limit = self._is_end(first), prompt_len + self.config.max_new_tokens

        def put(all_slots, values):
            return all_slots.at[where].set(values, mode="drop")

        def put_cache(buffer: Float[Array, "N K S H"], values: Float[Array, "P K W H"]):
            return buffer.at[where, :, :width].set(values, mode="drop")

        return replace(
            slots,
            tokens=put(slots.tokens, rows),
            length=put(slots.length, prompt_len + 1),
            limit=put(slots.limit, limit),
            is_done=put(slots.is_done, is_end | (prompt_len + 1 >= limit)),
            is_complete=put(slots.is_complete, is_end),
            key=put(slots.key, params.key),
            temperature=put(slots.temperature, params.temperature),
            cache=replace(
                slots.cache,
                keys=tuple(put_cache(b, v) for b, v in zip(slots.cache.keys, cache.keys, strict=True)),
                values=tuple(put_cache(b, v) for b, v in zip(slots.cache.values, cache.values, strict=True)),
            ),
        )

    def _advance_program(self, leaves, slots: Slots, params: RowParams, spec: SamplingSpec) -> Slots:
        """`steps_per_call` tokens for every slot that is not done."""
        target: Target = self._definition.merge(leaves)
        params = replace(params, key=slots.key, temperature=slots.temperature)
        everyone = jnp.arange(slots.tokens.shape[0])

        def step(_, slots: Slots) -> Slots:
            anchor = jnp.take_along_axis(slots.tokens, slots.length[:, None] - 1, axis=1)
            x, _, cache = target(anchor, slots.cache.with_length(slots.length - 1))
            prefix = Prefix(slots.tokens, slots.length[:, None], slots.length)
            drawn = draw(target.logits(x), prefix, params, spec).tokens[:, 0]
            # A slot that is done writes beyond its capacity, where writes are dropped.
            at = jnp.where(slots.is_done, slots.tokens.shape[1], slots.length)
            length = slots.length + ~slots.is_done
            is_end = ~slots.is_done & self._is_end(drawn)
            return replace(
                slots,
                tokens=slots.tokens.at[everyone, at].set(drawn, mode="drop"),
                length=length,
                is_done=slots.is_done | is_end | (length >= slots.limit),
                is_complete=slots.is_complete | is_end,
                cache=cache,
            )

        return jax.lax.fori_loop(0, self.config.steps_per_call, step, slots)

    def _is_end(self, tokens: Int[Array, "N"]) -> Bool[Array, "N"]:
        return jnp.any(tokens[:, None] == jnp.asarray(self.end_ids, jnp.int32)[None, :], axis=1)
