import numpy as np
import pytest

from benchmarks.replay import error_positions


def test_each_round_takes_one_error_more_than_it_has_refreshes():
    assert error_positions(9, 18, 4.0, 1) == [10, 13, 14, 17]
    assert error_positions(9, 18, 4.0, 0) == [13, 17]


def test_rounds_end_at_the_wanted_mean_length():
    ends = np.array(error_positions(100, 4000, 8.94, 3))[3::4]
    lengths = np.diff([100, *ends])
    assert set(lengths) == {8, 9}
    np.testing.assert_allclose(lengths.mean(), 8.94, atol=0.01)


def test_refuses_rounds_too_short_for_their_repairs():
    with pytest.raises(ValueError, match="3 repaired errors"):
        error_positions(0, 100, 4.0, 3)
