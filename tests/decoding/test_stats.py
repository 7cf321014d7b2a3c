"""Counters of a request's decoding."""

import json

import numpy as np
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


def test_hits_leave_the_first_round_out():
    stats = DecodeStats(num_drafts=3)
    for committed, is_hit, mass in ((4, False, 0.0), (3, True, 0.5), (1, False, 0.25), (2, True, 0.75)):
        stats.add_round(delivered=committed, committed=committed, drafted=3, is_hit=is_hit, mass=mass)
    stats.add_round(delivered=0, committed=4, drafted=3, is_hit=True, mass=1.0)  # beyond the end of the text
    assert (stats.hits, stats.cache_mass) == ([True, False, True], [0.5, 0.25, 0.75])
    assert (stats.hit_rate, stats.expected_hit_rate) == (2 / 3, 0.5)
    assert (stats.tau_on_hit, stats.tau_on_miss) == (2.5, 1.0)


def test_drafters_without_a_cache_have_no_hits():
    stats = stats_of((2, 2), (4, 4))
    assert (stats.hits, stats.hit_rate, stats.expected_hit_rate) == ([], None, None)
    assert (stats.tau_on_hit, stats.tau_on_miss, stats.refinement_gain) == (None, None, None)


def right_of(*counts: int) -> np.ndarray:
    """[passes, 3]: pass p had the first `counts[p]` drafts right."""
    return np.arange(3)[None, :] < np.array(counts)[:, None]


def test_refinement_gain_is_what_each_pass_adds_per_refined_round():
    stats = DecodeStats(num_drafts=3)
    for counts in ((0, 2, 3), (1, 1, 2), None):
        right = None if counts is None else right_of(*counts)
        stats.add_round(delivered=2, committed=2, drafted=3, right_by_pass=right)
    assert (stats.rounds, stats.refined_rounds) == (3, 2)
    assert stats.right_at_pass == [[1, 0, 0], [2, 1, 0], [2, 2, 1]]  # by pass and offset
    assert stats.refinement_gain == [1.0, 1.0]
    one_pass = DecodeStats(num_drafts=3)
    one_pass.add_round(delivered=2, committed=2, drafted=3, right_by_pass=right_of(1))
    assert one_pass.refinement_gain is None


def test_to_dict_is_json():
    values = json.loads(json.dumps(stats_of((2, 2)).to_dict()))
    assert (values["rounds"], values["tau"], values["histogram"]) == (1, 2.0, [0, 1, 0, 0])
