"""Counters of a request's decoding."""

import json

import pytest

from jetspec_jax.decoding.stats import DecodeStats


def stats_of(*rounds: tuple[int, int], num_drafts: int = 3) -> DecodeStats:
    """Stats after rounds given as (delivered, committed), all of them with a full block of drafts."""
    stats = DecodeStats(num_drafts)
    for delivered, committed in rounds:
        stats.add_round(delivered=delivered, committed=committed, drafted=num_drafts)
    return stats


@pytest.mark.parametrize(
    ("rounds", "committed", "accepted_at", "histogram"),
    [
        pytest.param([], [], [0, 0, 0], [0, 0, 0, 0], id="no-round"),
        pytest.param([(1, 1), (1, 1)], [1, 1], [0, 0, 0], [2, 0, 0, 0], id="none-accepted"),
        pytest.param([(4, 4), (4, 4)], [4, 4], [2, 2, 2], [0, 0, 0, 2], id="all-accepted"),
        pytest.param([(2, 2), (4, 4), (1, 1)], [2, 4, 1], [2, 1, 1], [1, 1, 0, 1], id="mixed"),
        # The text ended inside the round: what was committed beyond it counts nowhere.
        pytest.param([(4, 4), (2, 4)], [4, 2], [2, 2, 1], [0, 1, 0, 1], id="C11-last-round-cut-inside-the-drafts"),
        pytest.param([(3, 4)], [3], [1, 1, 1], [0, 0, 1, 0], id="C11-cut-before-the-bonus-token"),
        pytest.param([(4, 4), (0, 3)], [4], [1, 1, 1], [0, 0, 0, 1], id="round-without-text-is-not-counted"),
    ],
)
def test_counters(rounds, committed, accepted_at, histogram):
    stats = stats_of(*rounds)
    assert (stats.rounds, stats.committed) == (len(committed), committed)
    assert (stats.accepted_at, stats.histogram) == (accepted_at, histogram)
    assert stats.accepted == sum(accepted_at)
    assert stats.drafted == 3 * len(committed)


def test_derived_numbers():
    stats = stats_of((2, 2), (4, 4), (1, 1))
    stats.decode_ms = 100.0
    assert stats.tau == pytest.approx(7 / 3)
    assert stats.acceptance_rate == pytest.approx(4 / 9)
    assert stats.tokens_per_s == pytest.approx(70.0)


def test_derived_numbers_without_rounds_are_none():
    stats = stats_of()
    assert (stats.tau, stats.acceptance_rate, stats.tokens_per_s) == (None, None, None)


def test_plain_decoding_has_a_tau_of_one():
    stats = stats_of((1, 1), (1, 1), num_drafts=0)
    assert (stats.tau, stats.accepted_at, stats.histogram, stats.acceptance_rate) == (1.0, [], [2], None)


def test_to_dict_is_json():
    values = json.loads(json.dumps(stats_of((2, 2)).to_dict()))
    assert (values["rounds"], values["tau"], values["histogram"]) == (1, 2.0, [0, 1, 0, 0])
