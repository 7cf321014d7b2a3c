"""One round as a pure function, on a target that counts and keeps the tokens themselves in its cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_jax.decoding.round import prefill_chunk, verify_round
from jetspec_jax.decoding.row_params import SamplingSpec, row_params
from jetspec_jax.decoding.state import RoundState
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import counting_target

VOCAB_SIZE, CAPACITY, BATCH, NUM_DRAFTS = 97, 32, 3, 4
PROMPTS = ([7], [10, 11, 12], [40, 41, 42, 43, 44, 45, 46, 47, 48])


@pytest.fixture(scope="module")
def programs():
    """Compiled `prefill_chunk` for chunks of 4 positions, and `verify_round`."""
    target = counting_target(VOCAB_SIZE)
    params = row_params([SamplingParams()] * BATCH, eos_token_ids=(), vocab_size=VOCAB_SIZE, device=jax.devices()[0])

    @jax.jit
    def prefill(state, last_x, start):
        return prefill_chunk(target, state, last_x, 4, start, params, SamplingSpec())

    @jax.jit
    def verify(state, drafts, active):
        return verify_round(target, state, drafts, active, params, SamplingSpec())

    return target, prefill, verify


def prefilled(programs) -> tuple[RoundState, list]:
    """State after the prompts, which take one, one and three chunks, and what each chunk told the drafter."""
    target, prefill, _ = programs
    tokens = np.zeros((BATCH, CAPACITY), np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)] = prompt
    lengths = jnp.asarray([len(prompt) for prompt in PROMPTS], jnp.int32)
    state = RoundState(
        jnp.asarray(tokens),
        lengths,
        lengths,
        request=jnp.arange(BATCH, dtype=jnp.int32),
        round=jnp.zeros((BATCH,), jnp.int32),
        cache=target.init_cache(BATCH, CAPACITY),
    )
    last_x, told = jnp.zeros((BATCH, VOCAB_SIZE + 1), jnp.float32), []
    for start in (0, 4, 8):
        state, last_x, output, rows = prefill(state, last_x, jnp.int32(start))
        told.append(rows)
    assert output.num_committed.tolist() == [1, 1, 1]
    assert output.num_drafted.tolist() == [0, 0, 0]
    return state, told


def check_invariants(state: RoundState, num_committed: list[int]) -> None:
    """Texts count upwards, the cache holds all of each text but the anchor."""
    anchors = state.anchor.tolist()
    state = jax.device_get(state)
    for row, (prompt, count) in enumerate(zip(PROMPTS, num_committed, strict=True)):
        text = [(prompt[0] + i) % VOCAB_SIZE for i in range(len(prompt) + count)]
        assert state.length[row] == len(text)
        assert state.tokens[row, : len(text)].tolist() == text
        assert anchors[row] == text[-1]
        assert state.cache.length[row] == len(text) - 1
        assert state.cache.keys[0][row].reshape(-1)[: len(text) - 1].tolist() == text[:-1]


def test_prefill_in_chunks_draws_the_first_token_of_each_row(programs):
    state, _ = prefilled(programs)
    check_invariants(state, [1, 1, 1])


def test_prefill_tells_the_drafter_each_prompt_exactly_once(programs):
    """C14: a chunk beyond a short prompt keeps nothing and does not move that row's context."""
    _, told = prefilled(programs)
    for row, prompt in enumerate(PROMPTS):
        context, length = [], 0
        for rows in told:
            kept = int(rows.num_kept[row])
            assert rows.start[row] == length  # a drafter that sets its length to start + kept stays right
            context += rows.tokens[row, :kept].tolist()
            length += kept
        assert context == prompt


@pytest.mark.parametrize(
    ("wrong_at", "expected"),
    [
        pytest.param([0, 0, 0], [1, 1, 1], id="none-accepted"),
        pytest.param([9, 9, 9], [5, 5, 5], id="all-accepted"),
        pytest.param([3, 0, 9], [4, 1, 5], id="each-row-its-own"),
    ],
)
def test_commits_the_accepted_drafts_and_the_targets_own_token(programs, wrong_at, expected):
    state, _ = prefilled(programs)
    state, output, rows = programs[2](state, drafts_of(state, wrong_at), jnp.ones((BATCH,), bool))
    assert output.num_committed.tolist() == expected
    assert output.num_drafted.tolist() == [NUM_DRAFTS] * BATCH
    check_invariants(state, [1 + n for n in expected])
    # The drafter learns the rows that the cache keeps: the old anchor and the accepted drafts.
    assert rows.num_kept.tolist() == expected
    assert rows.start.tolist() == [len(prompt) for prompt in PROMPTS]


def drafts_of(state: RoundState, wrong_at: list[int]):
    """The right continuation with one wrong token in each row."""
    steps = jnp.arange(NUM_DRAFTS)[None]
    right = (state.anchor[:, None] + 1 + steps) % VOCAB_SIZE
    return jnp.where(steps == jnp.asarray(wrong_at)[:, None], (right + 5) % VOCAB_SIZE, right).astype(jnp.int32)


def test_inactive_rows_commit_nothing_and_stay_as_they_are(programs):
    state, _ = prefilled(programs)
    before = jax.device_get(state)
    state, output, _ = programs[2](state, drafts_of(state, [9, 9, 9]), jnp.asarray([True, False, True]))
    assert output.num_committed.tolist() == [5, 0, 5]
    check_invariants(state, [6, 1, 6])
    assert np.array_equal(state.tokens[1, : before.length[1]], before.tokens[1, : before.length[1]])


def test_rows_stop_before_a_block_would_leave_the_buffers(programs):
    """C16: `dynamic_update_slice` would move a block that does not fit and destroy older rows."""
    state, _ = prefilled(programs)
    for _ in range(CAPACITY):
        state, output, _ = programs[2](state, drafts_of(state, [9, 9, 9]), jnp.ones((BATCH,), bool))
    assert output.num_committed.tolist() == [0, 0, 0]
    room = CAPACITY - NUM_DRAFTS - 1
    assert state.length.tolist() == [room] * BATCH
    check_invariants(state, [room - len(prompt) for prompt in PROMPTS])


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(0, NUM_DRAFTS), min_size=BATCH, max_size=BATCH), min_size=1, max_size=6))
def test_invariants_hold_after_every_round_of_any_script(programs, script):
    """C14: cache length = committed - 1, and nothing of a rejected draft stays below it."""
    state, _ = prefilled(programs)
    counts = [1, 1, 1]
    for wrong_at in script:
        state, output, _ = programs[2](state, drafts_of(state, wrong_at), jnp.ones((BATCH,), bool))
        room = [CAPACITY - NUM_DRAFTS - 1 - len(p) - n for p, n in zip(PROMPTS, counts, strict=True)]
        expected = [min(wrong + 1, left) for wrong, left in zip(wrong_at, room, strict=True)]
        assert output.num_committed.tolist() == expected
        counts = [n + new for n, new in zip(counts, expected, strict=True)]
        check_invariants(state, counts)
