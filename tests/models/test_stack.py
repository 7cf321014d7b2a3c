"""Rows of two segments in one run of positions."""

import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.models.stack import joined


@pytest.mark.parametrize(("num_kept", "expected"), [(0, "xyyyy"), (2, "abxyy"), (3, "abcxy")])
def test_rows_that_are_not_kept_make_room_for_those_that_follow(num_kept, expected):
    letters = {letter: float(index) for index, letter in enumerate("abcxy")}
    rows, following = (jnp.array([[[letters[letter]] for letter in text]]) for text in ("abc", "xy"))
    found = joined(rows, following, jnp.array([num_kept], jnp.int32))
    np.testing.assert_array_equal(found[0, :, 0], [letters[letter] for letter in expected])


def test_every_request_has_its_own_number_of_rows():
    rows, following = jnp.arange(12.0).reshape(2, 3, 2, 1), -jnp.ones((2, 2, 2, 1))
    found = joined(rows, following, jnp.array([1, 3], jnp.int32))
    np.testing.assert_array_equal(found[:, :, 0, 0], [[0, -1, -1, -1, -1], [6, 8, 10, -1, -1]])
