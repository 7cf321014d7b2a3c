"""Times of the phases of a round, each as its own program on the model's own weights."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from jetspec_jax.decoding.programs import bucket
from jetspec_jax.decoding.round import verify_round
from jetspec_jax.decoding.row_params import row_params, sampling_spec
from jetspec_jax.decoding.state import RoundState
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
        draft_ms: the drafter's proposal and its catch-up on the verified rows.
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
        """Committed tokens per round from which speculation pays."""
        return (self.verify_ms + self.draft_ms) / self.ar_ms


def measure_phases(
    model: LanguageModel, *, context_len: int = 256, params: SamplingParams | None = None, repeats: int = 20
) -> PhaseTimes:
    """Times AR step, verification and drafting at a context length, interleaved so that drifts hit all alike."""
    programs, drafter = model.programs, model.drafter
    request = [params or SamplingParams()]
    spec = sampling_spec(request)
    vocab_size = model.config.vocab_size
    options = row_params(request, eos_token_ids=model.eos_token_ids, vocab_size=vocab_size, device=model.device)
    num_rows = drafter.num_drafts + 1
    capacity = bucket(context_len + 2 * num_rows)
    random = np.random.default_rng(0)
    tokens = jax.device_put(random.integers(0, vocab_size, (1, capacity), np.int32), model.device)
    prompt_len = jax.device_put(np.array([context_len], np.int32), model.device)
    active = jax.device_put(np.array([True]), model.device)

    def at_context(state: RoundState) -> RoundState:
        # Zeros in the cache cost what true keys cost.
        return replace(state, cache=state.cache.with_length(state.length - 1))

    def verify(leaves, state, drafts, active, options):
        state, out, rows = verify_round(
            programs.definition.merge(leaves), at_context(state), drafts, active, options, spec
        )
        return replace(state, length=state.prompt_len + 0), out, rows

    def draft(leaves, draft_leaves, draft_state, tokens, prompt_len, options, rows):
        target = programs.definition.merge(leaves)
        drafts, draft_state = drafter.propose(
            draft_leaves, target, draft_state, DraftView(tokens, prompt_len, options, spec)
        )
        return drafter.observe(draft_leaves, target, draft_state, rows), drafts

    jit_verify = jax.jit(verify, donate_argnums=(1,))
    jit_draft = jax.jit(draft, donate_argnums=(2,))
    states = {rows: programs.init_state(tokens + 0, prompt_len + 0) for rows in {1, num_rows}}
    blocks = {rows: jnp.zeros((1, rows - 1), jnp.int32) for rows in states}
    seen = {}

    def run_verify(rows: int) -> Callable[[], None]:
        def call() -> None:
            states[rows], out, seen[rows] = jit_verify(
                programs.target_leaves, states[rows], blocks[rows], active, options
            )
            jax.block_until_ready(out)

        return call

    draft_state = [drafter.init_state(1, capacity)]

    def run_draft() -> None:
        draft_state[0], drafts = jit_draft(
            programs.target_leaves, programs.draft_leaves, draft_state[0], tokens, prompt_len, options, seen[num_rows]
        )
        jax.block_until_ready((draft_state, drafts))

    calls = {"ar": run_verify(1), "verify": run_verify(num_rows), "draft": run_draft}
    times = _interleaved(calls, repeats)
    return PhaseTimes(context_len, capacity, num_rows, times["ar"], times["verify"], times["draft"], repeats)


def _interleaved(calls: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each call; the first two rounds warm up."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 2):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            samples[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(values[2:]) for name, values in samples.items()}
