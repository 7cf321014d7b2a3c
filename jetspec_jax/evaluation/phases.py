"""Times of the phases of a round, each as its own program on the model's own weights."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jetspec_jax.decoding.foresight_programs import Ahead, ForesightPrograms
from jetspec_jax.decoding.programs import Programs, bucket
from jetspec_jax.decoding.round import verify_round
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec, row_params, sampling_spec
from jetspec_jax.decoding.state import ContextRows
from jetspec_jax.drafters.protocol import DraftView
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams


@dataclass(frozen=True)
class PhaseTimes:
    """Median milliseconds of one call, host wait included.

    Attributes:
        context_len: tokens in the cache.
        capacity: slots of the cache.
        num_rows: rows of the verified block, γ + 1.
        ar_ms: verification of one row, plain decoding.
        verify_ms: verification of `num_rows` rows.
        draft_ms: the drafter's proposal and its catch-up on the verified rows. For a drafter that foresees: the blocks
            for all outcomes and the choice among them, after a hit (a miss may draft once more).
        repeats: calls behind each median.
    """

    context_len: int
    capacity: int
    num_rows: int
    ar_ms: float
    verify_ms: float
    draft_ms: float
    repeats: int

    @property
    def verify_ratio(self) -> float:
        """Cost of a verification in plain steps."""
        return self.verify_ms / self.ar_ms

    @property
    def break_even_tau(self) -> float:
        """Committed tokens per round from which speculation pays, if no phase hides behind another."""
        return (self.verify_ms + self.draft_ms) / self.ar_ms


def measure_phases(
    model: LanguageModel, *, context_len: int = 256, params: SamplingParams | None = None, repeats: int = 20
) -> PhaseTimes:
    """Times AR step, verification and drafting at a context length, interleaved so that drifts hit all alike."""
    programs, device, vocab_size = model.programs, model.device, model.config.vocab_size
    request = [params or SamplingParams()]
    num_rows = model.drafter.num_drafts + 1
    capacity = bucket(context_len + 2 * num_rows + programs.padding_rows)
    tokens = np.random.default_rng(0).integers(0, vocab_size, (1, capacity), np.int32)
    batch = _Batch(
        programs,
        tokens=jax.device_put(tokens, device),
        prompt_len=jax.device_put(np.array([context_len], np.int32), device),
        params=row_params(request, eos_token_ids=model.eos_token_ids, vocab_size=vocab_size, device=device),
        spec=sampling_spec(request),
    )
    verify = batch.verification(num_rows)
    draft = batch.foresight() if isinstance(programs, ForesightPrograms) else batch.drafting(verify())
    times = _interleaved({"ar": batch.verification(1), "verify": verify, "draft": draft}, repeats)
    return PhaseTimes(context_len, capacity, num_rows, times["ar"], times["verify"], times["draft"], repeats)


@dataclass(frozen=True)
class _Batch:
    """One request in the middle of its text. Each phase is given as a call that waits for its result."""

    programs: Programs
    tokens: jax.Array
    prompt_len: jax.Array
    params: RowParams
    spec: SamplingSpec

    def verification(self, num_rows: int) -> Callable[[], ContextRows]:
        """Verification of `num_rows` rows; its result is what a drafter learns from them."""
        programs, device = self.programs, self.programs.device

        def program(target_leaves, state, drafts, active, params):
            # Zeros in the cache cost what true keys cost.
            state = replace(state, cache=state.cache.with_length(state.length - 1))
            target = programs.definition.merge(target_leaves)
            state, out, rows = verify_round(target, state, drafts, active, params, self.spec)
            return replace(state, length=state.prompt_len + 0), (out, rows)

        drafts = jax.device_put(np.zeros((1, num_rows - 1), np.int32), device)
        others = (drafts, jax.device_put(np.array([True]), device), self.params)
        call = self._repeated(program, device, (programs.target_leaves,), self._state().target, others)
        return lambda: call()[1]

    def drafting(self, rows: ContextRows) -> Callable[[], Any]:
        """Proposal on the critical path, and the catch-up on verified rows."""
        programs, drafter = self.programs, self.programs.drafter

        def program(target_leaves, draft_leaves, decoder_leaves, state, tokens, length, params, rows):
            decoder = programs.decoder(decoder_leaves, programs.definition.merge(target_leaves))
            view = DraftView(tokens, length, params, self.spec)
            proposal, state = drafter.propose(draft_leaves, decoder, state, view)
            return drafter.observe(draft_leaves, decoder, state, rows), proposal

        leaves = (programs.target_leaves, programs.draft_leaves, programs.decoder_leaves)
        others = (self.tokens, self.prompt_len, self.params, rows)
        return self._repeated(program, programs.device, leaves, self._state().draft, others)

    def foresight(self) -> Callable[[], Any]:
        """Blocks for all outcomes of a verification, and the choice among them, on the draft's device."""
        programs = self.programs
        params = jax.device_put(self.params, programs.draft_device)
        target_leaves = () if programs.decoder_leaves else programs.target_leaves

        def program(target_leaves, draft_leaves, decoder_leaves, side, block, pending, params):
            target = programs.definition.merge(target_leaves) if target_leaves else None
            decoder = programs.decoder(decoder_leaves, target)
            side, cache = programs.foresee(draft_leaves, decoder, Ahead(side, block, pending), params, self.spec)
            # The verdict before the first block is about nothing, so there is nothing to draft anew, as after a hit.
            return side, programs.select(draft_leaves, decoder, side, cache, block, pending, params, self.spec)

        ahead = programs.start(self._state(), self.params, self.spec).draft
        leaves = (target_leaves, programs.draft_leaves, programs.decoder_leaves)
        others = (ahead.block, ahead.pending, params)
        return self._repeated(program, programs.draft_device, leaves, ahead.side, others)

    def _repeated(self, program: Callable, device, leaves: tuple, state: Any, others: tuple) -> Callable[[], Any]:
        """Calls of `(*leaves, state, *others) -> (state, result)` on a donated state; each waits for the result."""
        compiled = self.programs.executables.jit(program, donated=(len(leaves),), device=device)
        kept = [state]

        def call() -> Any:
            kept[0], result = jax.block_until_ready(compiled(*leaves, kept[0], *others))
            return result

        return call

    def _state(self) -> Any:
        # Buffers are donated: each state needs its own.
        return self.programs.init_state(self.tokens + 0, self.prompt_len + 0)


def _interleaved(calls: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each call; the first two rounds warm up."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 2):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            samples[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(values[2:]) for name, values in samples.items()}
