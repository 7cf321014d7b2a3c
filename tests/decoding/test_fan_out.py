"""Fixed fan-outs against the handbook's example and against exhaustive enumeration."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_jax.decoding.fan_out import (
    best_active_set,
    geometric_fan_out,
    integer_fan_out,
    length_prior,
    surrogate_hit_rate,
)

# Handbook 9.2: α = .6, ρ = 1, γ = 4, budget 10.
PROBS = np.array([0.4, 0.24, 0.144, 0.0864, 0.1296])
BUDGET, POWER = 10, 1.0
OMIT_3 = np.array([True, True, True, False, True])
# Sums of a few float64 terms.
EXACT = 1e-12

laws = st.lists(st.integers(1, 50), min_size=1, max_size=5).map(lambda w: np.array(w, np.float64) / sum(w))
powers = st.sampled_from([0.3, 1.0, 2.5])


def active_sets(num_lengths: int) -> list[np.ndarray]:
    return [np.array(kept) for kept in product([False, True], repeat=num_lengths) if any(kept)]


def allocations(num_lengths: int, budget: int) -> list[np.ndarray]:
    return [np.array(f) for f in product(range(budget + 1), repeat=num_lengths) if sum(f) == budget]


def value_on(active: np.ndarray, probs: np.ndarray, budget: int, power: float) -> float:
    return surrogate_hit_rate(probs, geometric_fan_out(probs, budget, power, active), power)


def test_length_prior_is_a_capped_geometric_law():
    np.testing.assert_allclose(length_prior(0.6, 4), PROBS, atol=EXACT)
    assert length_prior(0.6, 0).tolist() == [1.0]
    assert length_prior(0.9, 31).sum() == pytest.approx(1.0, abs=EXACT)


def test_surrogate_of_lengths_without_anchors_or_with_one_is_zero():
    assert surrogate_hit_rate(np.array([0.5, 0.5]), np.array([0, 1]), 1.0) == 0.0
    assert surrogate_hit_rate(np.array([0.5, 0.5]), np.array([0, 4]), 0.5) == pytest.approx(0.25)


def test_example_with_all_lengths():
    fan_out = geometric_fan_out(PROBS, BUDGET, POWER)
    np.testing.assert_allclose(fan_out, [2.934, 2.273, 1.760, 1.364, 1.670], atol=5e-4)
    assert surrogate_hit_rate(PROBS, fan_out, POWER) == pytest.approx(0.5353, abs=5e-5)


def test_example_without_length_3():
    fan_out = geometric_fan_out(PROBS, BUDGET, POWER, OMIT_3)
    np.testing.assert_allclose(fan_out, [3.397, 2.631, 2.038, 0, 1.934], atol=5e-4)
    assert surrogate_hit_rate(PROBS, fan_out, POWER) == pytest.approx(0.5670, abs=5e-5)


def test_example_best_active_set_of_all_31_omits_length_3():
    sets = active_sets(5)
    assert len(sets) == 31
    values = [value_on(active, PROBS, BUDGET, POWER) for active in sets]
    assert sets[np.argmax(values)].tolist() == OMIT_3.tolist()
    assert best_active_set(PROBS, BUDGET, POWER).tolist() == OMIT_3.tolist()


def test_example_best_whole_numbers():
    fan_out = integer_fan_out(PROBS, BUDGET, POWER)
    assert fan_out.tolist() == [3, 3, 2, 0, 2]
    assert surrogate_hit_rate(PROBS, fan_out, POWER) == pytest.approx(0.5635, abs=5e-5)


def test_prior_fan_out_is_a_geometric_series_with_a_capped_last_term():
    """Handbook 6.4: F_k = F_0 α^(k/(1+ρ)), F_γ = F_0 (α^γ/(1-α))^(1/(1+ρ))."""
    fan_out = geometric_fan_out(length_prior(0.7, 3), 8, 2.0)
    expected = [1, 0.7 ** (1 / 3), 0.7 ** (2 / 3), (0.7**3 / 0.3) ** (1 / 3)]
    np.testing.assert_allclose(fan_out / fan_out[0], expected, atol=EXACT)
    assert fan_out.sum() == pytest.approx(8, abs=EXACT * 8)


@settings(deadline=None, max_examples=60)
@given(probs=laws, budget=st.integers(1, 30), power=powers)
def test_best_active_set_equals_exhaustive_enumeration(probs, budget, power):
    best = max(value_on(active, probs, budget, power) for active in active_sets(len(probs)))
    assert value_on(best_active_set(probs, budget, power), probs, budget, power) == pytest.approx(best, abs=EXACT)


@settings(deadline=None, max_examples=40)
@given(probs=laws, budget=st.integers(1, 7), power=powers)
def test_integer_fan_out_equals_exhaustive_enumeration(probs, budget, power):
    best = max(surrogate_hit_rate(probs, f, power) for f in allocations(len(probs), budget))
    fan_out = integer_fan_out(probs, budget, power)
    assert fan_out.sum() == budget
    assert surrogate_hit_rate(probs, fan_out, power) == pytest.approx(best, abs=EXACT)


@settings(deadline=None, max_examples=20)
@given(probs=laws, budget=st.integers(2, 20), power=powers, seed=st.integers(0, 99))
def test_geometric_fan_out_is_the_maximum_on_its_set(probs, budget, power, seed):
    # Between real F of the same sum; where some F < 1 the surrogate goes on below 0 and the optimum is the same.
    other = np.random.default_rng(seed).dirichlet(np.ones(len(probs))) * budget + 1e-3
    other *= budget / other.sum()
    fan_out = geometric_fan_out(probs, budget, power)
    assert surrogate_hit_rate(probs, other, power) <= surrogate_hit_rate(probs, fan_out, power) + EXACT


def test_31_drafts_need_no_enumeration():
    probs = length_prior(0.95, 31)
    active = best_active_set(probs, 16, POWER)
    # The last length is likelier than its predecessors, so what is dropped lies in the middle.
    assert active[0]
    assert active[31]
    assert not active[30]
    assert np.all(geometric_fan_out(probs, 16, POWER, active)[active] >= 1)
    assert value_on(active, probs, 16, POWER) > value_on(np.ones(32, bool), probs, 16, POWER)
    fan_out = integer_fan_out(probs, 16, POWER)
    assert fan_out.sum() == 16
    assert surrogate_hit_rate(probs, fan_out, POWER) <= value_on(active, probs, 16, POWER)


@pytest.mark.parametrize(
    ("probs", "budget", "expected"),
    [
        pytest.param([0.2, 0.5, 0.3], 1, [0, 1, 0], id="one-anchor-for-the-likeliest"),
        pytest.param([0.25, 0.25, 0.25, 0.25], 4, [2, 2, 0, 0], id="ties-to-the-smaller-length"),
        pytest.param([1.0], 5, [5], id="one-length"),
        pytest.param([0.0, 1.0], 3, [0, 3], id="impossible-length"),
    ],
)
def test_integer_fan_out_by_hand(probs, budget, expected):
    assert integer_fan_out(np.array(probs), budget, POWER).tolist() == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda: length_prior(1.0, 4), r"acceptance_rate.*1\.0, 4", id="rate"),
        pytest.param(lambda: length_prior(0.5, -1), r"0\.5, -1", id="num-drafts"),
        pytest.param(lambda: geometric_fan_out(PROBS, 0, 1.0), "budget=0", id="budget"),
        pytest.param(lambda: geometric_fan_out(PROBS, 4, 1.0, np.zeros(5, bool)), "active length", id="none-active"),
        pytest.param(lambda: best_active_set(PROBS, 0, 1.0), "got 0", id="budget-of-set"),
        pytest.param(lambda: integer_fan_out(PROBS, 0, 1.0), "got 0", id="integer-budget"),
        pytest.param(lambda: integer_fan_out(PROBS, 4, 0.0), r"power=0\.0", id="power"),
        pytest.param(lambda: best_active_set(-PROBS, 4, 1.0), "probabilities", id="negative"),
    ],
)
def test_errors_name_the_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()
