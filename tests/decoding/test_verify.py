"""Acceptance is the longest prefix of the drafts that equals the target's draws."""

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_jax.decoding.verify import NO_TOKEN, num_accepted


def accepted(drafts: list[int], draws: list[int]) -> int:
    return int(num_accepted(jnp.asarray([drafts], jnp.int32), jnp.asarray([draws], jnp.int32))[0])


@pytest.mark.parametrize(
    ("drafts", "draws", "expected"),
    [
        pytest.param([5, 7, 9], [1, 7, 9, 4], 0, id="none"),
        pytest.param([5, 7, 9], [5, 7, 9, 4], 3, id="all"),
        pytest.param([5, 7, 9], [5, 1, 9, 4], 1, id="first"),
        pytest.param([5, 7, 9], [1, 1, 9, 4], 0, id="last-alone-does-not-count"),
        pytest.param([5, 7, 9], [5, 7, 2, 4], 2, id="all-but-last"),
        pytest.param([5, 7, 9], [5, 1, 9, 9], 1, id="right-again-after-a-mismatch"),
        pytest.param([5, NO_TOKEN, NO_TOKEN], [5, 7, 9, 4], 1, id="padded"),
        pytest.param([NO_TOKEN, NO_TOKEN, NO_TOKEN], [5, 7, 9, 4], 0, id="nothing-proposed"),
        pytest.param([5], [5, 4], 1, id="one-draft"),
        pytest.param([0, 0], [0, 0, 0], 2, id="token-zero-is-a-token"),
        pytest.param([2**31 - 1, 5], [1, 5, 4], 0, id="id-beyond-the-vocabulary"),
    ],
)
def test_accepts_up_to_the_first_mismatch(drafts, draws, expected):
    assert accepted(drafts, draws) == expected


def test_no_drafts_accept_nothing():
    assert num_accepted(jnp.zeros((2, 0), jnp.int32), jnp.asarray([[3], [4]], jnp.int32)).tolist() == [0, 0]


def test_rows_are_independent():
    drafts = jnp.asarray([[1, 2], [1, 2], [1, 2]], jnp.int32)
    draws = jnp.asarray([[1, 2, 0], [1, 0, 2], [0, 1, 2]], jnp.int32)
    assert num_accepted(drafts, draws).tolist() == [2, 1, 0]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3)), min_size=6, max_size=6))
def test_is_the_first_difference(pairs):
    drafts, draws = zip(*pairs, strict=True)
    expected = next((i for i, (draft, drawn) in enumerate(pairs) if draft != drawn), 6)
    assert accepted(list(drafts), [*draws, 0]) == expected
