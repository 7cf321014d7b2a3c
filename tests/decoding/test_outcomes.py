"""Outcome scores against hand-computed laws, enumeration of all draws, and simulated verifications."""

from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_jax.decoding.outcomes import (
    OUTCOME_RULES,
    Calibration,
    Outcomes,
    acceptance_log_probs,
    length_log_probs,
    outcome_log_probs,
    select_outcomes,
)
from jetspec_jax.decoding.verify import NO_TOKEN, num_accepted

INF = np.inf
# fp32 sums and products of up to 20 probabilities.
ROUNDING = 2e-6

_select = jax.jit(select_outcomes, static_argnames=("num_outcomes", "rule", "acceptance_prior"))
_table = jax.jit(outcome_log_probs)


def evidence_of(probs) -> jax.Array:
    with np.errstate(divide="ignore"):
        return jnp.asarray(np.log(probs), jnp.float32).reshape(-1, *np.shape(probs)[-2:])


def select(evidence, drafts: list[int], num_outcomes: int, *, author: list[float] | None = None, **options) -> Outcomes:
    """Of one request; `author` are the probabilities that the drafts' author gave them."""
    author = [0.5] * len(drafts) if author is None else author
    calibration = Calibration.identity() if options.get("rule") == "calibrated" else None
    options = {"num_outcomes": num_outcomes, "calibration": calibration} | options
    with np.errstate(divide="ignore"):
        logprobs = np.log([author], dtype=np.float32)
    return jax.device_get(_select(np.asarray(evidence, np.float32), np.array([drafts], np.int32), logprobs, **options))


def keys(outcomes: Outcomes, request: int = 0) -> list[tuple[int, int]]:
    """The valid (k, a), best first."""
    fields = (outcomes.num_accepted, outcomes.anchor, outcomes.is_valid)
    rows = zip(*(np.asarray(field)[request] for field in fields), strict=True)
    return [(int(k), int(a)) for k, a, is_valid in rows if is_valid]


def length_law(outcomes: Outcomes, num_lengths: int) -> np.ndarray:
    """P(k), the valid scores summed over anchors."""
    scores = np.where(outcomes.is_valid[0], np.exp(outcomes.log_score[0]), 0.0)
    return np.bincount(outcomes.num_accepted[0], weights=scores, minlength=num_lengths)


def enumerated(probs: np.ndarray, drafts: list[int]) -> np.ndarray:
    """P(k, a), by verifying the drafts against every sequence of independent draws."""
    num_rows, vocab = probs.shape
    draws = np.array(list(product(range(vocab), repeat=num_rows)), np.int32)
    weights = np.prod(probs[np.arange(num_rows), draws], axis=1)
    accepted = np.asarray(num_accepted(jnp.tile(jnp.asarray([drafts], jnp.int32), (len(draws), 1)), jnp.asarray(draws)))
    table = np.zeros(probs.shape)
    np.add.at(table, (accepted, draws[np.arange(len(draws)), accepted]), weights)
    return table


# Example of 9.1: tokens d1 = 0, d2 = 1, b = 2.
EXAMPLE = np.array([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])
FIVE = np.random.default_rng(0).dirichlet(np.ones(5), size=3)
FIVE_DRAFTS = [1, 4]


def test_example_of_the_handbook():
    table = np.exp(_table(evidence_of(EXAMPLE), jnp.asarray([[0, 1]])))[0]
    assert table[1, 2] == pytest.approx(0.24, abs=ROUNDING)
    assert table[1, 2] == pytest.approx(0.8 * (1 - 0.5) * (0.3 / 0.5), abs=ROUNDING)
    expected = [[0.0, 0.1, 0.1], [0.16, 0.0, 0.24], [0.12, 0.12, 0.16]]
    np.testing.assert_allclose(table, expected, atol=ROUNDING)
    best = select(evidence_of(EXAMPLE), [0, 1], 3)
    assert keys(best) == [(1, 2), (1, 0), (2, 2)]
    assert best.mass.tolist() == pytest.approx([0.24 + 0.16 + 0.16], abs=ROUNDING)


def test_table_and_ranking_equal_enumeration_on_five_tokens():
    expected = enumerated(FIVE, FIVE_DRAFTS)
    np.testing.assert_allclose(
        np.exp(_table(evidence_of(FIVE), jnp.asarray([FIVE_DRAFTS]))[0]), expected, atol=ROUNDING
    )
    ranked = select(evidence_of(FIVE), FIVE_DRAFTS, 15)
    assert len(keys(ranked)) == 13  # 4 + 4 + 5
    np.testing.assert_allclose(np.exp(ranked.log_score[0, :13]), [expected[key] for key in keys(ranked)], atol=ROUNDING)
    np.testing.assert_allclose(np.exp(ranked.log_score[0]), np.sort(expected, axis=None)[::-1], atol=ROUNDING)


def test_scores_are_the_law_of_simulated_verifications():
    num_rounds = 20_000
    draws = jax.random.categorical(jax.random.key(0), evidence_of(FIVE)[0], axis=-1, shape=(num_rounds, 3))
    accepted = np.asarray(num_accepted(jnp.tile(jnp.asarray([FIVE_DRAFTS]), (num_rounds, 1)), draws))
    anchors = np.asarray(draws)[np.arange(num_rounds), accepted]
    law = np.exp(_table(evidence_of(FIVE), jnp.asarray([FIVE_DRAFTS])))[0]
    frequency = np.bincount(accepted * 5 + anchors, minlength=15).reshape(3, 5) / num_rounds
    # 4 standard deviations of a frequency near 1/2.
    np.testing.assert_allclose(frequency, law, atol=0.015)
    cached = select(evidence_of(FIVE), FIVE_DRAFTS, 4)
    hit_rate = sum(frequency[key] for key in keys(cached))
    assert hit_rate == pytest.approx(float(cached.mass[0]), abs=0.015)


logits = st.lists(st.integers(-8, 8).map(float), min_size=12, max_size=12).map(lambda x: np.reshape(x, (1, 3, 4)))
drafts_of_two = st.lists(st.integers(NO_TOKEN, 4), min_size=2, max_size=2)  # 4 is beyond the vocabulary


@settings(deadline=None, max_examples=25)
@given(logits=logits, drafts=drafts_of_two)
def test_valid_outcomes_are_distinct_ranked_possible_and_sum_to_one(logits, drafts):
    table = np.exp(_table(np.asarray(logits, np.float32), np.array([drafts], np.int32)))
    assert table.sum() == pytest.approx(1.0, abs=ROUNDING)
    for rule in OUTCOME_RULES:
        outcomes = select(logits, drafts, 12, rule=rule)
        valid = keys(outcomes)
        assert len(set(valid)) == len(valid)
        assert np.all(outcomes.log_score[0, :-1] >= outcomes.log_score[0, 1:])
        for k, anchor in valid:
            assert all(0 <= draft < 4 for draft in drafts[:k])
            assert 0 <= anchor < 4
            assert k == 2 or anchor != drafts[k]
        if rule != "geometric":  # which keeps some anchors only
            assert np.exp(outcomes.log_score[outcomes.is_valid]).sum() == pytest.approx(1.0, abs=ROUNDING)
    assert keys(select(logits, drafts, 3)) == keys(select(logits, drafts, 12))[:3]


def test_best_by_score_hit_most_among_all_caches_of_their_size():
    probs = np.array([[0.5, 0.3, 0.2], [0.25, 0.15, 0.6]])
    table = enumerated(probs, [1])
    possible = [key for key in np.ndindex(2, 3) if table[key] > 0]
    assert len(possible) == 5
    hit_rates = [
        max(sum(table[key] for key in cache) for cache in combinations(possible, size)) for size in range(1, 6)
    ]
    ranked = select(evidence_of(probs), [1], 5)
    np.testing.assert_allclose(np.cumsum(np.exp(ranked.log_score[0])), hit_rates, atol=ROUNDING)


@pytest.mark.parametrize(
    ("rule", "options", "expected"),
    [
        pytest.param("uncalibrated", {}, [0.2, 0.4, 0.4], id="uncalibrated"),
        pytest.param("calibrated", {}, [0.2, 0.4, 0.4], id="calibrated"),
        pytest.param("draft_model", {"author": [0.9, 0.25]}, [0.1, 0.675, 0.225], id="draft-model"),
        pytest.param("draft_model", {"author": [1.0, 0.0]}, [0.0, 1.0, 0.0], id="draft-model-certain"),
        pytest.param("length_prior", {"acceptance_prior": 0.6}, [0.4, 0.24, 0.36], id="length-prior"),
        pytest.param("uniform", {}, [1 / 3, 1 / 3, 1 / 3], id="uniform"),
    ],
)
def test_rules_differ_in_the_law_of_the_length_alone(rule, options, expected):
    outcomes = select(evidence_of(EXAMPLE), [0, 1], 9, rule=rule, **options)
    np.testing.assert_allclose(length_law(outcomes, 3), expected, atol=ROUNDING)
    anchors = np.array([[0.0, 0.5, 0.5], [0.4, 0.0, 0.6], [0.3, 0.3, 0.4]])  # the decoder's, without the draft
    for key, log_score in zip(keys(outcomes), outcomes.log_score[0].tolist(), strict=False):
        assert np.exp(log_score) == pytest.approx(expected[key[0]] * anchors[key], abs=ROUNDING)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param("uncalibrated", [0.2, 0.8, 0.0], id="uncalibrated"),
        pytest.param("calibrated", [0.2, 0.8, 0.0], id="calibrated"),
        pytest.param("draft_model", [0.5, 0.5, 0.0], id="draft-model"),
        pytest.param("length_prior", [0.4, 0.6, 0.0], id="length-prior"),
        pytest.param("uniform", [0.5, 0.5, 0.0], id="uniform"),
    ],
)
def test_no_token_is_never_accepted_and_removes_no_anchor(rule, expected):
    outcomes = select(evidence_of(EXAMPLE), [0, NO_TOKEN], 9, rule=rule, acceptance_prior=0.6)
    np.testing.assert_allclose(length_law(outcomes, 3), expected, atol=ROUNDING)
    assert sorted(keys(outcomes)) == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    accept, reject = acceptance_log_probs(evidence_of(EXAMPLE), jnp.asarray([[0, NO_TOKEN]]))
    assert (accept[0, 1], reject[0, 1]) == (-INF, 0.0)


def test_geometric_rule_keeps_a_fixed_number_of_anchors_per_length():
    """α = .6, γ = 4, 10 rows: F = (3, 3, 2, 0, 2), whatever the evidence."""
    evidence = np.random.default_rng(1).normal(size=(1, 5, 6))
    drafts = [0, 1, 2, 3]
    cached = keys(select(evidence, drafts, 10, rule="geometric", acceptance_prior=0.6))
    expected = set()
    for k, fan_out in enumerate([3, 3, 2, 0, 2]):
        ranked = [a for a in np.argsort(-evidence[0, k]) if k == 4 or a != drafts[k]]
        expected |= {(k, int(a)) for a in ranked[:fan_out]}
    assert set(cached) == expected


def test_per_round_selection_beats_every_fixed_allocation():
    num_rounds, size = 50, 4
    probs = np.random.default_rng(2).dirichlet(np.full(5, 0.5), size=(num_rounds, 3))
    drafts = jnp.tile(jnp.asarray([FIVE_DRAFTS], jnp.int32), (num_rounds, 1))
    mass = np.asarray(_select(evidence_of(probs), drafts, jnp.zeros((num_rounds, 2)), num_outcomes=size).mass)
    table = np.exp(_table(evidence_of(probs), drafts))
    np.testing.assert_allclose(mass, np.sort(table.reshape(num_rounds, -1))[:, -size:].sum(axis=1), atol=ROUNDING)
    covered = fixed_allocations(table, size)
    assert np.all(mass[None] >= covered - ROUNDING)
    assert mass.mean() > covered.mean(axis=1).max() + 0.02  # no one allocation is right in every round


def test_fixed_allocation_is_as_good_when_the_ranks_never_change():
    """The same law with relabelled tokens: anchors change from round to round, their ranks do not."""
    relabel = np.array([np.random.default_rng(seed).permutation(5) for seed in range(20)])
    probs = np.stack([FIVE[:, np.argsort(names)] for names in relabel])
    drafts = jnp.asarray(relabel[:, FIVE_DRAFTS], jnp.int32)
    outcomes = _select(evidence_of(probs), drafts, jnp.zeros((20, 2)), num_outcomes=4)
    assert len({tuple(keys(outcomes, i)) for i in range(20)}) > 1
    best = fixed_allocations(np.exp(_table(evidence_of(probs), drafts)), 4).max(axis=0)
    np.testing.assert_allclose(outcomes.mass, best, atol=ROUNDING)
    np.testing.assert_allclose(best, best[0], atol=ROUNDING)


def fixed_allocations(table: np.ndarray, size: int) -> np.ndarray:
    """Hit probability of each allocation (F_0, F_1, F_2) of `size` rows, [allocation, round]."""
    best_first = -np.sort(-table, axis=-1)
    reached = np.pad(np.cumsum(best_first, axis=-1), ((0, 0), (0, 0), (1, 0)))  # [round, k, F]
    allocations = [f for f in product(range(size + 1), repeat=table.shape[1]) if sum(f) == size]
    return np.array([sum(reached[:, k, count] for k, count in enumerate(f)) for f in allocations])


def test_acceptance_is_exact_where_one_minus_a_probability_is_zero():
    accept, reject = acceptance_log_probs(jnp.asarray([[[30.0, 0.0], [0.0, 0.0]]]), jnp.asarray([[0]]))
    assert float(reject[0, 0]) == pytest.approx(-30.0, abs=1e-5)
    assert float(accept[0, 0]) == pytest.approx(-np.exp(-30.0), rel=1e-5)
    lengths = length_log_probs(accept, reject)
    np.testing.assert_allclose(lengths, [[-30.0, -np.exp(-30.0)]], rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([[1e4, -1e4, 0], [1e4, -1e4, 0]], [(1, 0), (0, 2), (1, 2), (0, 1), (1, 1)], id="certain"),
        pytest.param([[-1e4, 1e4, 0], [0, 1e4, 0]], [(0, 1), (0, 2), (1, 1), (1, 0), (1, 2)], id="surely-rejected"),
        pytest.param([[1, -INF, -INF], [0, -INF, 1]], [(1, 2), (1, 0)], id="draft-is-the-only-token"),
        pytest.param([[-INF, 1, 0], [0, 0, 1]], [(0, 1), (0, 2)], id="draft-is-impossible"),
        pytest.param([[1, 0, 0], [-INF] * 3], [(0, 1), (0, 2)], id="empty-last-row"),
        pytest.param([[-INF] * 3, [1, 0, 0]], [], id="empty-first-row"),
        pytest.param([[1, 0, 0], [np.nan, 0, 0]], [(0, 1), (0, 2)], id="nan"),
        pytest.param([[1, 0, 0], [0, INF, 0]], [(0, 1), (0, 2)], id="infinite"),
    ],
)
def test_extreme_evidence_gives_finite_scores_or_no_outcome(rows, expected):
    """Draft 0; five outcomes of three tokens, the rest of the six rows is invalid."""
    outcomes = select([rows], [0], 6)
    assert keys(outcomes) == expected
    assert np.all(np.isfinite(outcomes.log_score[0]) == outcomes.is_valid[0])
    assert np.isfinite(outcomes.mass[0])
    for rule in ("calibrated", "draft_model"):  # the others read the evidence in the same way
        assert not np.any(np.isnan(select([rows], [0], 6, rule=rule, author=[1.0]).log_score))


def test_ties_go_to_the_smaller_length_then_to_the_smaller_token():
    outcomes = select(np.zeros((1, 2, 2)), [1], 4)  # scores 1/2, 1/4, 1/4
    assert keys(outcomes) == [(0, 0), (1, 0), (1, 1)]
    outcomes = select(np.zeros((1, 3, 3)), [NO_TOKEN, 0], 3)
    assert keys(outcomes) == [(0, 0), (0, 1), (0, 2)]
    uniform = select(np.zeros((1, 3, 3)), [2, 2], 7, rule="uniform")  # 1/6 for k < 2, 1/9 for k = 2
    assert keys(uniform) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]


def test_without_drafts_the_anchors_are_ranked():
    for rule in ("uncalibrated", "calibrated", "geometric", "uniform"):
        outcomes = select([[[0.0, 2.0, 1.0]]], [], 2, rule=rule)
        assert keys(outcomes) == [(0, 1), (0, 2)]
        np.testing.assert_allclose(
            outcomes.log_score[0], jax.nn.log_softmax(jnp.asarray([2.0, 1.0, 0.0]))[:2], atol=1e-6
        )


def test_half_precision_evidence_is_scored_in_fp32():
    evidence, logprobs = jnp.asarray([[[2, 1, 0], [0, 1, 2]]], jnp.bfloat16), jnp.asarray([[-1]], jnp.bfloat16)
    outcomes = _select(evidence, jnp.asarray([[0]]), logprobs, num_outcomes=6)
    assert outcomes.log_score.dtype == jnp.float32
    assert float(outcomes.mass[0]) == pytest.approx(1.0, abs=ROUNDING)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"rule": "best"}, "unknown outcome rule 'best', known: calibrated, ", id="rule"),
        pytest.param({"num_outcomes": 0}, r"3 lengths \* 0 anchors, got 0", id="no-outcomes"),
        pytest.param({"num_outcomes": 13}, r"3 lengths \* 4 anchors, got 13", id="too-many"),
        pytest.param({"rule": "calibrated"}, "needs a calibration, got None", id="calibration"),
        pytest.param({"acceptance_prior": 1.0}, r"acceptance_prior < 1, got 1\.0", id="prior-1"),
        pytest.param({"acceptance_prior": 0.0}, r"acceptance_prior < 1, got 0\.0", id="prior-0"),
        pytest.param({"drafts": jnp.zeros((1, 3), jnp.int32)}, "3 drafts need 4 rows of evidence, got 3", id="rows"),
    ],
)
def test_errors_name_the_values(options, message):
    drafts = options.get("drafts", jnp.zeros((1, 2), jnp.int32))
    inputs = {"evidence": jnp.zeros((1, 3, 4)), "drafts": drafts, "draft_logprobs": jnp.zeros(drafts.shape)}
    with pytest.raises(ValueError, match=message):
        select_outcomes(**({"num_outcomes": 4} | inputs | options))
