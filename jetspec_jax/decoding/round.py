"""One round as pure functions: prefill of a prompt chunk, and verification of a drafted block."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jetspec_jax.decoding.filters import Prefix
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec
from jetspec_jax.decoding.sampling import draw_states
from jetspec_jax.decoding.state import ContextRows, RoundOutput, RoundState, write_tokens
from jetspec_jax.decoding.verify import NO_TOKEN, num_accepted
from jetspec_jax.models.target import Target


def verify_round(
    target: Target,
    state: RoundState,
    drafts: Int[Array, "B G"],
    active: Bool[Array, "B"],
    params: RowParams,
    spec: SamplingSpec,
) -> tuple[RoundState, RoundOutput, ContextRows]:
    """Verifies the block [anchor, drafts] in one target pass and commits what equals the target's draws.

    With n the position of the anchor, rows 0..G run at positions n..n+G; row i draws position n+i+1 given
    `committed + drafts[:i]`. The k accepted drafts and draw k are committed, the cache keeps rows 0..k.

    Args:
        target: the merged target.
        state: see `RoundState`.
        drafts: proposals; `NO_TOKEN` where there is none. Any other id is safe: only draws are committed.
        active: rows that still decode; the others commit nothing.
        params, spec: sampling options.

    Returns:
        The new state, the output for the host, and the rows for the drafter to learn from.
    """
    block = jnp.concatenate([state.anchor[:, None], drafts], axis=1)  # [B, T], T = G + 1
    num_rows = block.shape[1]
    x, taps, cache = target(block, state.cache)
    lengths = state.length[:, None] + jnp.arange(num_rows, dtype=jnp.int32)[None, :]
    prefix = Prefix(write_tokens(state.tokens, drafts, state.length), lengths, state.prompt_len)
    drawn = draw_states(target, x, prefix, params, spec)

    accepted = num_accepted(drafts, drawn.tokens)
    # A row the host has not stopped yet must not run past the buffers.
    room = jnp.maximum(state.tokens.shape[1] - num_rows - state.length, 0)
    committed = jnp.where(active, jnp.clip(accepted + 1, 0, room), 0)
    new_state = replace(
        state,
        tokens=write_tokens(state.tokens, drawn.tokens, state.length),
        length=state.length + committed,
        round=state.round + active.astype(jnp.int32),
        cache=cache.commit(committed),
    )
    num_drafted = jnp.sum(drafts != NO_TOKEN, axis=1, dtype=jnp.int32)
    rows = ContextRows(block, taps, state.length - 1, committed)
    return new_state, RoundOutput.of_draw(drawn, committed, num_drafted), rows


def prefill_chunk(
    target: Target,
    state: RoundState,
    last_x: Float[Array, "B D"],
    chunk_len: int,
    start: Int[Array, ""],
    params: RowParams,
    spec: SamplingSpec,
) -> tuple[RoundState, Float[Array, "B D"], RoundOutput, ContextRows]:
    """Runs prompt positions `start .. start + chunk_len - 1` of every row; the last chunk draws the first token.

    Rows of a batch have different prompt lengths: beyond its prompt a row computes garbage that stays above its
    length. `last_x` carries the state of each row's last prompt position from the chunk that holds it.

    Args:
        target: the merged target.
        state: `tokens[:prompt_len]` is the prompt.
        last_x: carried; zeros for the first chunk.
        chunk_len: static number of positions.
        start: position of the chunk.
        params, spec: sampling options.

    Returns:
        State, `last_x`, the output (meaningful for the last chunk), and rows for the drafter.
    """
    batch = state.tokens.shape[0]
    tokens = jax.lax.dynamic_slice(state.tokens, (0, start), (batch, chunk_len))
    num_kept = jnp.clip(state.prompt_len - start, 0, chunk_len)
    # Rows still in their prompt stand at `start`; the others have committed all of it and write garbage above it.
    x, taps, cache = target(tokens, state.cache)
    offset = state.prompt_len - 1 - start  # of the last prompt position, in this chunk or not
    here = jnp.take_along_axis(x, jnp.clip(offset, 0, chunk_len - 1)[:, None, None], axis=1)[:, 0]
    last_x = jnp.where(((offset >= 0) & (offset < chunk_len))[:, None], here, last_x)

    prefix = Prefix(state.tokens, state.prompt_len[:, None], state.prompt_len)
    drawn = draw_states(target, last_x[:, None], prefix, params, spec)
    new_state = replace(
        state,
        tokens=write_tokens(state.tokens, drawn.tokens, state.prompt_len),
        length=state.prompt_len + 1,
        cache=cache.commit(num_kept),
    )
    rows = ContextRows(tokens, taps, state.cache.length, num_kept)
    one = jnp.ones((batch,), jnp.int32)
    return new_state, last_x, RoundOutput.of_draw(drawn, one, one * 0), rows
