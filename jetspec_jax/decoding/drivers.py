"""The decode loop on the host: it queues rounds and reads their results one round late.

What a round consists of is up to the programs: one program on one device (critical path, fused) or three on two devices
(pipelined). The loop is the same and waits for a device in one place only.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jetspec_jax.decoding.packed import Packed, Packer
from jetspec_jax.decoding.programs import PREFILL_CHUNK, Programs, bucket
from jetspec_jax.decoding.round_trace import RoundTrace
from jetspec_jax.decoding.row_params import row_params, sampling_spec
from jetspec_jax.decoding.state import RoundOutput
from jetspec_jax.decoding.stats import DecodeStats
from jetspec_jax.decoding.walk import TextWalk


@dataclass(frozen=True)
class Delivery:
    """New text of one request after one round.

    Attributes:
        row: index of the request in the batch.
        token_ids: delivered tokens.
        text: text that became certain.
        num_accepted: how many of the tokens, from the first on, were drafts; the rest are the target's own.
        logprobs: per token (raw, processed, [(id, raw), ...]), None unless asked for.
        trace: how the round's block came about, None unless the drafter keeps traces.
    """

    row: int
    token_ids: list[int]
    text: str
    num_accepted: int
    logprobs: list[tuple[float, float, list[tuple[int, float]]]] | None
    trace: RoundTrace | None = None


@dataclass
class _InFlight:
    parts: list[Packed]  # the output's arrays, those of one device together
    treedef: Any
    is_prefill: bool


class Driver:
    """Decodes batches with the programs of one target and drafter."""

    def __init__(self, programs: Programs):
        self.programs = programs

    def decode(
        self, prompts: Sequence[Sequence[int]], walks: Sequence[TextWalk], stats: Sequence[DecodeStats]
    ) -> Iterator[list[Delivery]]:
        """Decodes a batch, yielding after each round; `walks` and `stats` are updated in place.

        A walk that is finished from outside (`cancel`) stops its row within two rounds. Closing the iterator stops
        everything.

        Args:
            prompts: token ids, none empty.
            walks, stats: one per prompt.
        """
        if all(walk.is_finished for walk in walks):
            return
        loop = _Loop(self.programs, prompts, walks, stats)
        # No transfer may hide in the loop; the explicit ones are `device_put` of `active` and `drain`.
        with jax.transfer_guard("disallow"):
            loop.prefill()
            loop.start()
        while loop.in_flight:
            with jax.transfer_guard("disallow"):
                if loop.may_dispatch():
                    loop.dispatch()
                deliveries = loop.drain() if len(loop.in_flight) > 1 or not loop.may_dispatch() else []
            if deliveries:
                paused = time.perf_counter()
                yield deliveries
                loop.began += time.perf_counter() - paused  # the consumer's time is not ours


class _Loop:
    """State of one batch's decoding on the host."""

    def __init__(self, programs: Programs, prompts, walks: Sequence[TextWalk], stats: Sequence[DecodeStats]):
        self.began = time.perf_counter()
        self.compile_ms = 0.0
        self.programs, self.walks, self.stats = programs, walks, stats
        self.in_flight: deque[_InFlight] = deque()
        self.packer = Packer()
        self.batch = len(prompts)
        self.foresees = getattr(programs.drafter, "foresees", False)
        requests = [walk.params for walk in walks]
        config = programs.target.config
        self.spec = sampling_spec(requests)
        self.params = row_params(
            requests, eos_token_ids=walks[0].eos_token_ids, vocab_size=config.vocab_size, device=programs.device
        )
        self.prompt_lens = np.array([len(prompt) for prompt in prompts], np.int32)
        with self._booking_compilation():
            self.state = self._initial_state(prompts)
        self.active = np.array([not walk.is_finished for walk in walks])
        self.active_on_device = jax.device_put(self.active, programs.device)

    def _initial_state(self, prompts):
        longest, num_rows = int(self.prompt_lens.max()), self.programs.drafter.num_drafts + 1
        self.chunk_len = min(bucket(longest), PREFILL_CHUNK)
        padded = -(-longest // self.chunk_len) * self.chunk_len
        # Look-ahead never counts against the user's limit (C16): a block that starts below the limit is committed
        # whole, and one more block fits above it, with the rows that kernels pad a block with.
        needed = max(len(p) + walk.max_new_tokens for p, walk in zip(prompts, self.walks, strict=True)) + 2 * num_rows
        needed += self.programs.padding_rows
        tokens = np.zeros((self.batch, bucket(max(padded, needed))), np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
        self.num_chunks = padded // self.chunk_len
        device = self.programs.device
        return self.programs.init_state(jax.device_put(tokens, device), jax.device_put(self.prompt_lens, device))

    def prefill(self) -> None:
        """Queues the prompt chunks; the last one draws the first token."""
        width = self.programs.target.config.shape.hidden_size
        last_x = jax.device_put(np.zeros((self.batch, width), self.programs.target.dtype), self.programs.device)
        for chunk in range(self.num_chunks):
            start = jax.device_put(np.int32(chunk * self.chunk_len), self.programs.device)
            with self._booking_compilation():
                self.state, last_x, output = self.programs.prefill(
                    self.state, last_x, self.chunk_len, start, self.params, self.spec
                )
        self._push(output, is_prefill=True)

    def start(self) -> None:
        """Queues what the first round needs."""
        if self.may_dispatch() and self._is_drafting():
            with self._booking_compilation():
                self.state = self.programs.start(self.state, self.params, self.spec)

    def may_dispatch(self) -> bool:
        """Whether some row surely needs another round than those in flight (each commits at least one token)."""
        return len(self.in_flight) < 2 and any(
            not walk.is_finished and len(walk.token_ids) + len(self.in_flight) < walk.max_new_tokens
            for walk in self.walks
        )

    def dispatch(self) -> None:
        """Queues a round."""
        active = np.array([not walk.is_finished for walk in self.walks])
        if not np.array_equal(active, self.active):
            self.active = active
            self.active_on_device = jax.device_put(active, self.programs.device)
        with self._booking_compilation():
            self.state, output = self.programs.round(
                self.state, self.active_on_device, self.params, self.spec, is_drafting=self._is_drafting()
            )
        self._push(output, is_prefill=False)

    def _is_drafting(self) -> bool:
        """Plain rounds from the moment no active row is short enough for the drafter."""
        drafter = self.programs.drafter
        if drafter.num_drafts == 0:
            return False
        if drafter.max_len is None:
            return True
        lengths = self.prompt_lens + np.array([len(walk.token_ids) for walk in self.walks])
        for row in np.flatnonzero(self.active & (lengths + drafter.num_drafts > drafter.max_len)):
            if self.stats[row].drafting_stopped_at is None:
                self.stats[row].drafting_stopped_at = int(lengths[row])
        return bool(np.any(self.active & (lengths + drafter.num_drafts <= drafter.max_len)))

    def _push(self, output: RoundOutput, *, is_prefill: bool) -> None:
        arrays, treedef = jax.tree.flatten(output)
        device, draft_device = self.programs.device, self.programs.draft_device
        # The report of the draft comes last, from its device.
        first = len(arrays) - (len(jax.tree.leaves(output.draft)) if device != draft_device else 0)
        shares = [(arrays[:first], device), (arrays[first:], draft_device)]
        parts = [self.packer.pack(share, at) for share, at in shares if share]
        self.in_flight.append(_InFlight(parts, treedef, is_prefill))

    def drain(self) -> list[Delivery]:
        """Reads the oldest round and walks its tokens: the one place where the host waits for the device."""
        flight = self.in_flight.popleft()
        arrays = [array for part in flight.parts for array in self.packer.read(part)]
        output = jax.tree.unflatten(flight.treedef, arrays)
        deliveries = []
        for row, walk in enumerate(self.walks):
            if walk.is_finished or (count := int(output.num_committed[row])) == 0:
                continue
            delivered, text = walk.advance(output.tokens[row, :count].tolist(), output.finite[row, :count].tolist())
            trace = None
            if not flight.is_prefill:
                report = output.draft
                self.stats[row].add_round(
                    delivered=delivered,
                    committed=count,
                    drafted=int(output.num_drafted[row]),
                    is_hit=None if report is None or not self.foresees else bool(report.is_hit[row]),
                    mass=None if report is None else float(report.mass[row]),
                    right_by_pass=report.right_by_pass[row] if report is not None and report.is_refined[row] else None,
                )
                if report is not None:
                    trace = RoundTrace.of_row(report, row, output.tokens[row, :count].tolist())
            self._record_time(row, flight.is_prefill)
            num_accepted = 0 if flight.is_prefill else min(delivered, count - 1)
            token_ids = output.tokens[row, :delivered].tolist()
            deliveries.append(
                Delivery(
                    row,
                    token_ids,
                    text,
                    num_accepted,
                    _logprobs_of(output, row, delivered, walk.params.logprobs),
                    trace,
                )
            )
        return deliveries

    @contextmanager
    def _booking_compilation(self) -> Iterator[None]:
        """Books what a call compiles on this loop; other loops may share the programs."""
        before = self.programs.compile_ms
        yield
        self.compile_ms += self.programs.compile_ms - before

    def _record_time(self, row: int, is_prefill: bool) -> None:
        elapsed = 1e3 * (time.perf_counter() - self.began) - self.compile_ms
        stats = self.stats[row]
        stats.compile_ms = self.compile_ms
        if is_prefill:
            stats.prefill_ms = elapsed
        else:
            stats.decode_ms = elapsed - stats.prefill_ms


def _logprobs_of(output: RoundOutput, row: int, count: int, num: int | None) -> list[Any] | None:
    """Logprobs of the delivered tokens of one row; the drawn token is always among the alternatives or added."""
    if num is None or output.logprobs is None:
        return None
    logprobs, result = output.logprobs, []
    for i in range(count):
        top = [(int(t), float(p)) for t, p in zip(logprobs.top_ids[row, i], logprobs.top_raw[row, i], strict=True)]
        top = top[:num]
        token, raw = int(output.tokens[row, i]), float(logprobs.raw[row, i])
        if token not in dict(top):
            top.append((token, raw))
        result.append((raw, float(logprobs.processed[row, i]), top))
    return result
