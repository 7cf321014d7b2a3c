"""Compiled programs of one target and drafter: one executable per shape, compiled ahead of the loop.

Shapes are bucketed (capacity, prompt chunk) so that requests share executables; an executable never recompiles, it
refuses other shapes.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.round import prefill_chunk, verify_round
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec
from jetspec_jax.decoding.state import RoundOutput, RoundState
from jetspec_jax.decoding.verify import NO_TOKEN
from jetspec_jax.drafters.protocol import Drafter, DraftView
from jetspec_jax.models.functional import Leaves, ModuleDef
from jetspec_jax.models.target import Target

# Longest piece of a prompt that one call processes; longer prompts take several calls of one executable.
PREFILL_CHUNK = 512
_BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def bucket(size: int) -> int:
    """The smallest bucket that holds `size`; above the table, multiples of 1024."""
    for candidate in _BUCKETS:
        if size <= candidate:
            return candidate
    return -(-size // 1024) * 1024


class Programs:
    """Compiles and keeps the executables.

    Attributes:
        num_compiled: executables built so far.
        compile_ms: time spent building them.
    """

    def __init__(self, definition: ModuleDef, leaves: Leaves, drafter: Drafter, device: jax.Device):
        self.definition = definition
        self.target_leaves = leaves
        self.drafter = drafter
        self.draft_leaves = drafter.place(device)
        self.device = device
        self.num_compiled = 0
        self.compile_ms = 0.0
        self.on_compile: Callable[[str], Any] | None = None
        self._executables: dict[tuple, Callable] = {}

    @cached_property
    def target(self) -> Target:
        """The merged target; for shapes and configuration, not for computing."""
        return self.definition.merge(self.target_leaves)

    def set_draft_leaves(self, leaves: Leaves) -> None:
        """Gives the drafter other arrays of the same shapes, say newly trained weights; nothing is recompiled.

        Args:
            leaves: as the drafter's `place` gives them.

        Raises:
            ValueError: shapes or dtypes differ from the old ones.
        """
        if (new := _types(leaves)) != (old := _types(self.draft_leaves)):
            raise ValueError(f"the drafter's leaves are {old}, got {new}")
        self.draft_leaves = jax.device_put(leaves, self.device)

    def init_state(self, tokens: Int[Array, "B S"], prompt_len: Int[Array, "B"]) -> RoundState:
        """Empty caches around the prompts."""
        batch, capacity = tokens.shape
        with jax.default_device(self.device):
            return jax.device_put(
                RoundState(
                    tokens=tokens,
                    length=prompt_len + 0,  # buffers are donated: the two lengths must not share one
                    prompt_len=prompt_len,
                    cache=self.target.init_cache(batch, capacity),
                    draft=self.drafter.init_state(batch, capacity),
                ),
                self.device,
            )

    def prefill(
        self,
        state: RoundState,
        last_x: Float[Array, "B D"],
        chunk_len: int,
        start: Int[Array, ""],
        params: RowParams,
        spec: SamplingSpec,
    ) -> tuple[RoundState, Float[Array, "B D"], RoundOutput]:
        """Runs one prompt chunk through target and drafter."""

        def program(target_leaves, draft_leaves, state, last_x, start, params):
            target = self.definition.merge(target_leaves)
            state, last_x, out, rows = prefill_chunk(target, state, last_x, chunk_len, start, params, spec)
            draft = self.drafter.observe(draft_leaves, target, state.draft, rows)
            return replace(state, draft=draft), last_x, out

        key = ("prefill", state.tokens.shape, chunk_len, spec, _shapes(params))
        return self._run(key, program, (2, 3), state, last_x, start, params)

    def round(
        self, state: RoundState, active: Bool[Array, "B"], params: RowParams, spec: SamplingSpec, *, is_drafting: bool
    ) -> tuple[RoundState, RoundOutput]:
        """One fused round: propose, verify, commit, observe. Without drafting, one row is verified."""

        def program(target_leaves, draft_leaves, state, active, params):
            target = self.definition.merge(target_leaves)
            drafts, draft = self._propose(draft_leaves, target, state, params, spec, is_drafting)
            state, out, rows = verify_round(target, state, drafts, active, params, spec)
            if is_drafting:
                draft = self.drafter.observe(draft_leaves, target, draft, rows)
            return replace(state, draft=draft), out

        key = ("round", state.tokens.shape, is_drafting, spec, _shapes(params))
        return self._run(key, program, (2,), state, active, params)

    def _propose(self, leaves, target, state: RoundState, params, spec, is_drafting: bool):
        if not is_drafting:
            return jnp.zeros((state.tokens.shape[0], 0), jnp.int32), state.draft
        view = DraftView(state.tokens, state.length, params, spec)
        drafts, draft = self.drafter.propose(leaves, target, state.draft, view)
        expected = (state.tokens.shape[0], self.drafter.num_drafts)
        if drafts.shape != expected or not jnp.issubdtype(drafts.dtype, jnp.integer):
            raise ValueError(
                f"drafter {self.drafter.name!r} must propose integers of shape {list(expected)}, "
                f"got {drafts.dtype}{list(drafts.shape)}"
            )
        drafts = drafts.astype(jnp.int32)
        if self.drafter.max_len is not None:
            fits = state.length + self.drafter.num_drafts <= self.drafter.max_len
            drafts = jnp.where(fits[:, None], drafts, NO_TOKEN)
        return drafts, draft

    def _run(self, key: tuple, program: Callable, donated: tuple[int, ...], *args):
        args = (self.target_leaves, self.draft_leaves, *args)
        executable = self._executables.get(key)
        if executable is None:
            if self.on_compile is not None:
                self.on_compile(f"compiling {key[0]} for {key[1][0]} x {key[1][1]} slots")
            began = time.perf_counter()
            # Constants that a user's function closes over are moved while lowering; only the loop is guarded.
            with jax.transfer_guard("allow"):
                executable = jax.jit(program, donate_argnums=donated).lower(*args).compile()
            self.compile_ms += 1e3 * (time.perf_counter() - began)
            self.num_compiled += 1
            self._executables[key] = executable
        return executable(*args)


def _types(leaves: Leaves) -> list[str]:
    return [f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves]


def _shapes(tree: Any) -> tuple:
    return tuple(leaf.shape for leaf in jax.tree.leaves(tree))
