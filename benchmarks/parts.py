"""The parts of a round as programs of their own, on a model's weights: what each costs, and what it must read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import dispatch_ms, queued_ms
from jetspec_jax.decoding.foresight_programs import Ahead
from jetspec_jax.decoding.pipelined_programs import PipelinedPrograms
from jetspec_jax.decoding.row_params import row_params, sampling_spec
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.functional import split
from jetspec_jax.ops.first_argmax import first_argmax
from jetspec_jax.sampling_params import SamplingParams


@dataclass(frozen=True)
class Part:
    """A part of a round.

    Attributes:
        ms: median milliseconds of a call that is queued behind others.
        host_ms: how long a call keeps the host.
        num_bytes: what must be read at least: weights once, the committed context of the caches once.
    """

    ms: float
    host_ms: float
    num_bytes: int

    def to_dict(self, bandwidth: float) -> dict[str, float]:
        """With the floor at a read bandwidth in bytes a second, and how far above it the part is."""
        floor = 1e3 * self.num_bytes / bandwidth
        times = {"ms": self.ms, "host_ms": self.host_ms, "floor_ms": floor, "of_floor": floor / self.ms}
        return times | {"bytes": self.num_bytes}


class Parts:
    """Times the parts of one model's round at a context length; one request, greedy.

    Args:
        model: with a JetSpec++ drafter, pipelined (on one device or two).
        context_len: tokens before the anchor.
        capacity: slots of the caches.
        repeats: queues behind each median.
    """

    def __init__(self, model: LanguageModel, *, context_len: int, capacity: int, repeats: int):
        self.model = model
        self.programs: PipelinedPrograms = model.programs
        self.drafter, self.config = model.drafter, model.config
        self.context_len, self.repeats = context_len, repeats
        requests = [SamplingParams()]
        self.spec = sampling_spec(requests)
        params = row_params(requests, eos_token_ids=(), vocab_size=model.config.vocab_size, device=model.device)
        self.params, self.side_params = params, jax.device_put(params, self.programs.draft_device)
        tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (1, capacity), np.int32)
        self._tokens = tokens
        self._length = np.array([context_len], np.int32)

    def verification(self, num_rows: int) -> Part:
        """The target's step over `num_rows` rows, drawing included; one row is plain decoding."""
        programs, device = self.programs, self.programs.device

        def program(leaves, state, drafts, active, params):
            # Back to where it was: zeros in the cache cost what true keys cost.
            length = state.prompt_len
            state = replace(state, length=length + 1, cache=state.cache.with_length(length + 0))
            target = programs.definition.merge(leaves)
            after, out, verdict = programs.verify(target, state, drafts, active, params, self.spec)
            return after, out, verdict.rows.taps

        drafts = jax.device_put(np.zeros((1, num_rows - 1), np.int32), device)
        active = jax.device_put(np.array([True]), device)
        state = self._state().target
        args = (programs.target_leaves, state, drafts, active, self.params)
        step = self._compiled(program, args, donated=(1,), device=device)
        call = lambda state: step(programs.target_leaves, state, drafts, active, self.params)[0]  # noqa: E731
        return self._timed(
            call,
            state,
            _read_bytes(programs.target.decoder(), programs.target_leaves, self.config)
            + self._context_bytes(state.cache),
        )

    def draft_pass(self, num_blocks: int) -> Part:
        """One pass of the draft over `num_blocks` blocks, to its arg-max."""
        side = self._side()

        def program(draft_leaves, decoder_leaves, context, tokens, start):
            draft, decoder = self.drafter.draft_of(draft_leaves), self.programs.decoder(decoder_leaves)
            hidden = draft(decoder.embed(tokens), context, start)
            return first_argmax(decoder.head(hidden))[0]

        num_rows = self.drafter.num_drafts
        context = side.caches.context
        num_bytes = _bytes(self.drafter.draft_of(self.programs.draft_leaves).layers) + _head_bytes(self._decoder())
        return self._over_blocks(program, (context,), num_blocks, num_rows, num_bytes + self._context_bytes(context))

    def adapter_pass(self, num_blocks: int) -> Part:
        """Predicted taps of `num_blocks` blocks."""
        predictor, (cache, _) = self.drafter.predictor, self._side().caches.predictor

        def program(draft_leaves, decoder_leaves, cache, tokens, start):
            adapter = predictor.merge(self.drafter.predictor_leaves(draft_leaves))
            taps = adapter.predict(self.programs.decoder(decoder_leaves).embed(tokens), cache, start)
            # Tokens again, so that calls depend on each other.
            return tokens + (0 * taps[:, :, :, -1, 0]).astype(jnp.int32)

        num_bytes = _bytes(predictor.merge(self.drafter.predictor_leaves(self.programs.draft_leaves)))
        num_bytes += self._context_bytes(cache)
        return self._over_blocks(program, (cache,), num_blocks, self.drafter.num_drafts, num_bytes)

    def decoder_pass(self, num_blocks: int) -> Part:
        """From predicted states to the target's next token, `num_blocks` blocks."""
        _, cache = self._side().caches.predictor

        def program(draft_leaves, decoder_leaves, cache, tokens, start):
            decoder = self.programs.decoder(decoder_leaves)
            states = decoder.embed(tokens).astype(decoder.dtype)
            return first_argmax(decoder.predict(states, cache, start))[0]

        decoder = self._decoder()
        num_bytes = _bytes(decoder.layers) + _head_bytes(decoder) + self._context_bytes(cache)
        return self._over_blocks(program, (cache,), num_blocks, self.drafter.num_drafts, num_bytes)

    def foresight(self) -> Part:
        """Everything the draft side does in a round that was a hit, without the choice among its blocks."""
        programs = self.programs
        ahead = programs.start(self._state(), self.params, self.spec).draft

        def program(draft_leaves, decoder_leaves, side, block, pending, params):
            decoder = programs.decoder(decoder_leaves)
            after, cache = programs.foresee(draft_leaves, decoder, Ahead(side, block, pending), params, self.spec)
            # The text does not grow, so every call does the same work.
            kept = {name: getattr(side, name) + 0 for name in ("tokens", "length", "request", "round")}
            return replace(after, **kept), cache.proposals.tokens

        leaves = (programs.draft_leaves, programs.decoder_leaves)
        args = (*leaves, ahead.side, ahead.block, ahead.pending, self.side_params)
        step = self._compiled(program, args, donated=(2,), device=programs.draft_device)
        call = lambda side: step(*leaves, side, ahead.block, ahead.pending, self.side_params)[0]  # noqa: E731
        return self._timed(call, ahead.side, self._foresight_bytes(ahead.side))

    def _foresight_bytes(self, side) -> int:
        """Weights and context of every network, as often as a round runs them."""
        refine = self.drafter.drafting.refine
        draft, decoder = self.drafter.draft_of(self.programs.draft_leaves), self._decoder()
        predictor = self.drafter.predictor_leaves(self.programs.draft_leaves)
        adapter_cache, decoder_cache = side.caches.predictor
        predict = _bytes(self.drafter.predictor.merge(predictor)) + self._context_bytes(adapter_cache)
        predict += _bytes(decoder.layers) + _head_bytes(decoder) + self._context_bytes(decoder_cache)
        one_pass = _bytes(draft.layers) + _head_bytes(decoder) + self._context_bytes(side.caches.context)
        # Context rows: features, then keys and values of every layer, N + 2K heads of which 2K are needed.
        shape = draft.config.shape
        share = 2 * shape.num_kv_heads / (shape.num_heads + 2 * shape.num_kv_heads)
        keys_values = int(share * sum(_bytes(layer.attention.qkv) for layer in draft.layers))
        injections = (1 + refine.num_refreshes) * (_bytes(draft.fc) + keys_values)
        return (1 + refine.num_refreshes) * predict + (1 + refine.num_passes) * one_pass + injections

    def _over_blocks(self, program: Callable, state: tuple, num_blocks: int, num_rows: int, num_bytes: int) -> Part:
        device = self.programs.draft_device
        tokens = jax.device_put(np.ones((1, num_blocks, num_rows), np.int32), device)
        start = jax.device_put(np.full((1, num_blocks), self.context_len, np.int32), device)
        leaves = (self.programs.draft_leaves, self.programs.decoder_leaves)
        step = self._compiled(program, (*leaves, *state, tokens, start), donated=(), device=device)
        return self._timed(lambda tokens: step(*leaves, *state, tokens, start), tokens, num_bytes)

    def _compiled(self, program: Callable, args: tuple, **options: Any) -> Callable:
        """Ahead of its first call, as in the decoding loop."""
        return self.programs.executables.jit(program, **options).lower(*args).compile()

    def _timed(self, call: Callable[[Any], Any], state: Any, num_bytes: int) -> Part:
        # The call donates what it is given; each of the two measurements goes on from its own copy.
        copy = jax.tree.map(lambda leaf: leaf + 0, state)
        return Part(queued_ms(call, state, repeats=self.repeats), dispatch_ms(call, copy, repeats=10), num_bytes)

    def _context_bytes(self, cache) -> int:
        """Keys and values of the committed context."""
        sides = (*cache.keys, *cache.values)
        return sum(leaf.nbytes // leaf.shape[2] * self.context_len for leaf in sides)

    def _decoder(self):
        return self.programs.decoder(self.programs.decoder_leaves)

    def _side(self):
        return self._state().draft.side

    def _state(self):
        device = self.programs.device
        return self.programs.init_state(jax.device_put(self._tokens, device), jax.device_put(self._length, device))


def _bytes(module: Any) -> int:
    return sum(leaf.nbytes for leaf in split(module)[1])


def _head_bytes(decoder) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(decoder.head_weight))


def _read_bytes(decoder, target_leaves, config) -> int:
    """All weights of the target but an embedding that is only looked up."""
    looked_up = 0 if config.tie_word_embeddings else decoder.embed.weight[...].nbytes
    return sum(leaf.nbytes for leaf in target_leaves) - looked_up
