"""The repetition rule: when a text counts as looping, where the loop starts, and what tau is without it."""

import pytest

from jetspec_jax.evaluation.repetition import before_onset, loop_onset


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        pytest.param([9, 1, 2, 1, 2, 1, 2], 1, id="three-copies"),
        pytest.param([1, 2, 1, 2, 1, 2, 1, 2], 0, id="four-copies"),
        pytest.param([1, 2, 1, 2], None, id="two-copies"),
        pytest.param([1, 2, 3, 4, 5, 6, 7], None, id="no-loop"),
        pytest.param([1, 2, 7, 1, 2, 8, 1, 2], 0, id="copies-with-gaps"),
        pytest.param([1, 1, 1, 1, 1], None, id="copies-must-not-overlap"),
        pytest.param([1, 1, 1, 1, 1, 1], 0, id="one-token"),
        pytest.param([], None, id="empty"),
    ],
)
def test_loop_onset_with_span_2(token_ids, expected):
    assert loop_onset(token_ids, span=2, copies=3) == expected


def test_cycle_of_seven_tokens_is_a_loop_by_the_rule_of_64():
    # I04: 20 ordinary tokens, then a cycle. Copies of the last 64 lie 70 apart, ten cycles: the first whole one that
    # the chain from the end reaches starts inside the cycle, at most one stride after its beginning.
    text = [*range(100, 120), *[i % 7 for i in range(280)]]
    onset = loop_onset(text)
    assert 20 <= onset < 20 + 70
    assert loop_onset(text[:20]) is None


@pytest.mark.parametrize(
    ("num_tokens", "onset", "expected"),
    [
        # Rounds of 2, 4, 4 after the first token: tokens 1-2, 3-6, 7-10.
        pytest.param(11, None, (3, 10), id="whole-text"),
        pytest.param(11, 7, (2, 6), id="cut-between-rounds"),
        pytest.param(11, 5, (2, 4), id="cut-inside-a-round"),
        pytest.param(11, 1, (0, 0), id="only-the-first-token"),
    ],
)
def test_before_onset(num_tokens, onset, expected):
    assert before_onset([2, 4, 4], range(num_tokens), onset=onset) == expected
