"""The draft: its size, what a block can and cannot see, the geometry of the effective anchor (handbook 1.3, 7.3)."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import DraftConfig, RopeConfig, TransformerShape, draft_config_for
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import ModuleDef
from jetspec_jax.testing import tiny_config

# Normalised fp32 states of size 1 to 4, two layers deep, through products of other shapes. Measured: below 2e-6.
SHAPE_ATOL = 1e-5

BATCH, BLOCKS, ROWS, SLOTS, TAPS, WIDTH = 2, 3, 6, 24, 2, 32
# Position of each block's anchor: an empty context, blocks that overlap, and another order in the other request.
STARTS = np.array([[0, 7, 9], [17, 3, 4]], np.int32)


@cache
def draft_of(causal: bool = True, dtype=jnp.float32):
    """Structure and random leaves, the same for both kinds of mask."""
    config = draft_config_for(tiny_config(num_layers=4, taps=(0, 2)), num_layers=2, causal=causal)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Draft(config, dtype=dtype, rngs=nnx.Rngs(0))))
    shapes, treedef = jax.tree.flatten(state)
    rng = np.random.default_rng(7)

    def leaf(shape):  # norms around 1, matrices that keep the size of what they multiply
        values = rng.normal(size=shape)
        return jnp.asarray(1 + 0.2 * values if len(shape) == 1 else values * shape[-1] ** -0.5, dtype)

    return ModuleDef(graphdef, treedef), tuple(leaf(described.shape) for described in shapes)


@cache
def program(causal: bool, sees_fixed_rows: bool):
    """`run(leaves, taps, x, start, num_fixed, states)`; the taps fill all slots, those beyond a block included."""
    definition, _ = draft_of(causal)

    @jax.jit
    def run(leaves, taps, x, start, num_fixed, states):
        draft = definition.merge(leaves)
        context = draft.extend(draft.init_context(taps.shape[0], taps.shape[1]), taps)
        refreshed = None if states is None else draft.inject(states, start)
        return draft(x, context, start, num_fixed=num_fixed, refreshed=refreshed, sees_fixed_rows=sees_fixed_rows)

    return run


def outputs(*, causal=True, sees_fixed_rows=False, num_fixed=None, states=None, **inputs) -> np.ndarray:
    """[B, R, T, D] of one pass; `taps`, `x` and `start` as in `random_inputs`."""
    inputs = random_inputs() | inputs
    run = program(causal, sees_fixed_rows)
    fixed = None if num_fixed is None else np.asarray(num_fixed, np.int32)
    return np.asarray(run(draft_of(causal)[1], inputs["taps"], inputs["x"], inputs["start"], fixed, states))


def random_array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def random_inputs() -> dict:
    return {
        "taps": random_array(0, BATCH, SLOTS, TAPS, WIDTH),
        "x": random_array(1, BATCH, BLOCKS, ROWS, WIDTH),
        "start": STARTS,
    }


def random_states() -> np.ndarray:
    return random_array(2, BATCH, BLOCKS, ROWS, TAPS, WIDTH)


def scaled(array: np.ndarray, index, factor: float = -1.0) -> np.ndarray:
    """A copy with the entries at `index` multiplied."""
    array = array.copy()
    array[index] *= np.float32(factor)
    return array


# Index of one thing in every block or request.
ALL = slice(None)


def qwen3_draft(hidden_size: int, intermediate_size: int) -> DraftConfig:
    shape = TransformerShape(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        qk_norm=True,
    )
    return DraftConfig(shape=shape, num_layers=5, num_taps=5, rope=RopeConfig(theta=1e6))


@pytest.mark.parametrize(
    ("hidden_size", "intermediate_size", "expected"),
    [
        pytest.param(4096, 12288, 1_048_626_432, id="Qwen3-8B"),
        pytest.param(5120, 17408, 1_730_213_120, id="Qwen3.8-27B"),
    ],
)
def test_number_of_parameters_is_the_papers(hidden_size, intermediate_size, expected):
    config = qwen3_draft(hidden_size, intermediate_size)
    draft = nnx.eval_shape(lambda: Draft(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(draft))) == expected


@pytest.mark.parametrize("causal", [True, False])
def test_context_at_or_beyond_the_anchor_is_not_seen(causal):
    """The leak of SpecForge#470: what is visible is decided by position, not by the order of the blocks."""
    before, taps = outputs(causal=causal), random_inputs()["taps"]
    for position in (0, 2, 3, 6, 7, 8, 9, 16, 17, 23):
        changed = outputs(causal=causal, taps=scaled(taps, (ALL, position), -1e3))
        is_same = (changed == before).all(axis=(2, 3))
        np.testing.assert_array_equal(is_same, position >= STARTS, err_msg=f"position {position}")


def test_every_row_reads_the_context():
    before, taps = outputs(), random_inputs()["taps"]
    changed = outputs(taps=scaled(taps, (ALL, 0)))
    np.testing.assert_array_equal((changed != before).all(axis=3), np.broadcast_to(STARTS[..., None] > 0, (2, 3, ROWS)))


@pytest.mark.parametrize("num_fixed", [None, [[2, 3, 1], [4, 1, 5]]])
def test_other_blocks_are_not_seen(num_fixed):
    x, states = random_inputs()["x"], random_states()
    before = outputs(num_fixed=num_fixed, states=states)
    changed = outputs(num_fixed=num_fixed, states=scaled(states, (ALL, 1), -3), x=scaled(x, (ALL, 1), -3))
    np.testing.assert_array_equal(changed[:, [0, 2]], before[:, [0, 2]])
    assert (changed[:, 1] != before[:, 1]).any(axis=(1, 2)).all()


def test_blocks_together_are_blocks_alone():
    alone = fresh_block(np.zeros_like(STARTS), random_states())
    np.testing.assert_allclose(alone, outputs(), rtol=0, atol=SHAPE_ATOL)


@pytest.mark.parametrize("row", [1, 3, 5])
def test_causal_rows_do_not_see_later_ones(row):
    before, x = outputs(), random_inputs()["x"]
    changed = outputs(x=scaled(x, (ALL, ALL, row)))
    np.testing.assert_array_equal(changed[:, :, :row], before[:, :, :row])
    assert (changed[:, :, row:] != before[:, :, row:]).any(axis=3).all()


def test_block_of_16_rows_begins_the_block_of_32():
    x = random_array(3, BATCH, BLOCKS, 32, WIDTH)
    np.testing.assert_allclose(outputs(x=x[:, :, :16]), outputs(x=x)[:, :, :16], rtol=0, atol=SHAPE_ATOL)


def test_bidirectional_rows_see_the_whole_block():
    before, x = outputs(causal=False), random_inputs()["x"]
    for row in range(ROWS):
        changed = outputs(causal=False, x=scaled(x, (ALL, ALL, row)))
        assert (changed != before).any(axis=3).all()


def test_context_comes_in_pieces():
    """Rows that are not kept are overwritten by the next ones."""
    definition, leaves = draft_of()
    taps = random_array(4, BATCH, 2 * SLOTS, TAPS, WIDTH)

    @jax.jit
    def extend(leaves, context, taps):
        return definition.merge(leaves).extend(context, taps)

    empty = definition.merge(leaves).init_context(BATCH, 2 * SLOTS)
    whole, pieces = extend(leaves, empty, taps), empty
    for num_kept in np.random.default_rng(0).integers(0, 9, (5, BATCH), np.int32):
        rows = np.full((BATCH, 8, TAPS, WIDTH), 1e3, np.float32)
        for row, (start, kept) in enumerate(zip(pieces.length.tolist(), num_kept.tolist(), strict=True)):
            rows[row, :kept] = taps[row, start : start + kept]
        pieces = extend(leaves, pieces, rows).commit(jnp.asarray(num_kept))
    assert min(pieces.length.tolist()) > 12
    for one, other in zip(whole.keys + whole.values, pieces.keys + pieces.values, strict=True):
        for row, length in enumerate(pieces.length.tolist()):
            np.testing.assert_allclose(other[row, :, :length], one[row, :, :length], rtol=0, atol=SHAPE_ATOL)


def fresh_block(num_fixed: np.ndarray, states: np.ndarray, *, causal: bool = True, rows: int = ROWS) -> np.ndarray:
    """Each block anew, as a request of its own: anchor at row `num_fixed`, the rows before it in the context."""
    inputs, flat = random_inputs(), num_fixed.reshape(-1)
    starts = STARTS.reshape(-1)
    taps = np.repeat(inputs["taps"], BLOCKS, axis=0)  # [B * R, S, M, D]
    x = inputs["x"].reshape(-1, ROWS, WIDTH)
    for block, (start, fixed) in enumerate(zip(starts, flat, strict=True)):
        taps[block, start : start + fixed] = states.reshape(-1, ROWS, TAPS, WIDTH)[block, :fixed]
    # Rolled, so that all have one shape: the rows at the end are junk that a causal block does not look at.
    x = np.stack([np.roll(rows_of, -fixed, axis=0) for rows_of, fixed in zip(x, flat, strict=True)])[:, None, :rows]
    out = outputs(causal=causal, taps=taps, x=x, start=(starts + flat)[:, None])
    return out.reshape(BATCH, BLOCKS, rows, WIDTH)


@pytest.mark.parametrize(
    "num_fixed",
    [
        pytest.param([[1, 2, 3], [5, 4, 1]], id="another-for-each-block"),
        pytest.param([[0, 0, 0], [0, 0, 0]], id="none"),
        pytest.param([[5, 5, 5], [5, 5, 5]], id="all-but-the-last-row"),
    ],
)
def test_effective_anchor_is_a_block_of_its_own(num_fixed):
    """With true states in place of the fixed rows: the geometry of training, to rounding."""
    fixed, states = np.array(num_fixed, np.int32), random_states()
    out, fresh = outputs(num_fixed=fixed, states=states), fresh_block(fixed, states)
    for b, r in np.ndindex(BATCH, BLOCKS):
        settled = fixed[b, r]
        np.testing.assert_allclose(out[b, r, settled:], fresh[b, r, : ROWS - settled], rtol=0, atol=SHAPE_ATOL)


def test_effective_anchor_of_a_bidirectional_block():
    fixed, states = np.full((BATCH, BLOCKS), 2, np.int32), random_states()
    out = outputs(causal=False, num_fixed=fixed, states=states)
    fresh = fresh_block(fixed, states, causal=False, rows=ROWS - 2)
    np.testing.assert_allclose(out[:, :, 2:], fresh, rtol=0, atol=SHAPE_ATOL)


FIXED = np.array([[1, 2, 3], [5, 4, 2]], np.int32)


def _from_anchor_on(array: np.ndarray) -> np.ndarray:
    """[B, R, T, D] with the rows before the effective anchor, which mean nothing, set to 0."""
    return np.where(np.arange(ROWS)[None, None, :, None] >= FIXED[..., None, None], array, 0)


@pytest.mark.parametrize("causal", [True, False])
def test_rows_before_the_effective_anchor_are_not_seen(causal):
    x, states = random_inputs()["x"], random_states()
    is_fixed = np.arange(ROWS)[None, None, :, None] < FIXED[..., None, None]
    changed = np.where(is_fixed, -3 * x, x)

    def run(rows, **options):
        return _from_anchor_on(outputs(causal=causal, x=rows, num_fixed=FIXED, states=states, **options))

    np.testing.assert_array_equal(run(changed), run(x))
    # Double conditioning does see them.
    assert (run(changed, sees_fixed_rows=True) != run(x, sees_fixed_rows=True)).any(axis=(2, 3)).all()
    assert (run(x, sees_fixed_rows=True) != run(x)).any(axis=(2, 3)).all()


def test_refreshed_states_are_seen_below_the_effective_anchor_only():
    states = random_states()
    before = _from_anchor_on(outputs(num_fixed=FIXED, states=states))
    for row in range(ROWS):
        changed = outputs(num_fixed=FIXED, states=scaled(states, (ALL, ALL, row), -2))
        is_same = (_from_anchor_on(changed) == before).all(axis=(2, 3))
        np.testing.assert_array_equal(is_same, row >= FIXED, err_msg=f"row {row}")


def test_refreshed_states_without_fixed_rows_change_nothing():
    np.testing.assert_allclose(
        outputs(num_fixed=np.zeros_like(FIXED), states=random_states()), outputs(), rtol=0, atol=SHAPE_ATOL
    )


@pytest.mark.parametrize("num_fixed", [0, 1, ROWS - 1, ROWS])
@pytest.mark.parametrize("causal", [True, False])
def test_empty_context_gives_no_nan(num_fixed, causal):
    """A prompt of one token; and a block in which everything is settled."""
    nowhere, fixed = np.zeros_like(STARTS), np.full_like(STARTS, num_fixed)
    assert np.isfinite(outputs(causal=causal, start=nowhere)).all()
    assert np.isfinite(outputs(causal=causal, start=nowhere, num_fixed=fixed, states=random_states())).all()


def test_overflow_in_a_block_stays_there():
    """A drafted row that overflowed must not reach other blocks, nor rows that do not see it."""
    x = random_inputs()["x"]
    x[:, 1, 4] = np.inf
    before, after = outputs(), outputs(x=x)
    np.testing.assert_array_equal(after[:, [0, 2]], before[:, [0, 2]])
    np.testing.assert_array_equal(after[:, 1, :4], before[:, 1, :4])


def test_weights_may_be_of_another_dtype_than_the_inputs():
    definition, leaves = draft_of(dtype=jnp.bfloat16)

    def run(taps, x, start):
        draft = definition.merge(leaves)
        return draft(x, draft.extend(draft.init_context(BATCH, SLOTS), taps), start)

    assert jax.eval_shape(run, *random_inputs().values()).dtype == definition.merge(leaves).dtype == jnp.bfloat16
