"""The calibrated rule: its features, its special case without calibration, and conformal pruning."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_jax.decoding.outcomes import (
    FEATURE_LIMIT,
    Calibration,
    Outcomes,
    calibration_features,
    conformal_threshold,
    select_outcomes,
)
from jetspec_jax.decoding.verify import NO_TOKEN, num_accepted

INF = np.inf
# fp32 sums and products of up to 20 probabilities.
ROUNDING = 2e-6
# Example of handbook 9.1, drafts [0, 1]: rows are the laws of three positions.
EXAMPLE = np.log([[[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]]])

_select = jax.jit(select_outcomes, static_argnames=("num_outcomes", "rule", "acceptance_prior"))
_features = jax.jit(calibration_features)


def select(
    evidence, drafts: list[int], num_outcomes: int, *, author=(0.5, 0.5), calibration=None, **options
) -> Outcomes:
    """Of one request; `author` are the probabilities that the drafts' author gave them."""
    inputs = (np.asarray(evidence, np.float32), np.array([drafts], np.int32), np.log([author], dtype=np.float32))
    calibration = Calibration.identity() if calibration is None else calibration
    options = {"rule": "calibrated"} | options
    return jax.device_get(_select(*inputs, num_outcomes=num_outcomes, calibration=calibration, **options))


def keys(outcomes: Outcomes) -> list[tuple[int, int]]:
    rows = zip(outcomes.num_accepted[0], outcomes.anchor[0], outcomes.is_valid[0], strict=True)
    return [(int(k), int(a)) for k, a, is_valid in rows if is_valid]


logits = st.lists(st.integers(-8, 8).map(float), min_size=12, max_size=12).map(lambda x: np.reshape(x, (1, 3, 4)))
drafts_of_two = st.lists(st.integers(NO_TOKEN, 4), min_size=2, max_size=2)  # 4 is beyond the vocabulary


@settings(deadline=None, max_examples=25)
@given(logits=logits, drafts=drafts_of_two)
def test_identity_calibration_is_the_uncalibrated_rule(logits, drafts):
    # Logits within ±4 keep the log-odds inside the clip.
    calibrated = select(logits / 2, drafts, 12)
    uncalibrated = select(logits / 2, drafts, 12, rule="uncalibrated")
    assert keys(calibrated) == keys(uncalibrated)
    assert calibrated.log_score.tolist() == uncalibrated.log_score.tolist()


def test_calibrated_rule_by_hand():
    evidence = np.array([[[2.0, 1.0, -1.0], [0.5, 0.0, 3.0], [1.0, 0.0, 0.0]]])
    drafts, author = [0, 1], [0.7, 0.2]
    features = []
    for i, (row, draft, q) in enumerate(zip(evidence[0], drafts, author, strict=False), start=1):
        p = np.exp(row) / np.exp(row).sum()
        margin = row[draft] - np.delete(row, draft).max()
        log_odds = np.log(p[draft] / (1 - p[draft]))
        features.append([1, log_odds, margin, np.log(q / (1 - q)), np.log(i), -np.sum(p * np.log(p))])
    inputs = (jnp.asarray(evidence, jnp.float32), jnp.asarray([drafts]), jnp.log(jnp.asarray([author])))
    np.testing.assert_allclose(_features(*inputs)[0], features, rtol=1e-5, atol=1e-6)

    coefficients = np.array([0.3, 0.8, -0.2, 0.1, -0.4, 0.25])
    accept = 1 / (1 + np.exp(-np.array(features) @ coefficients))
    lengths = [1 - accept[0], accept[0] * (1 - accept[1]), accept[0] * accept[1]]
    warm = np.exp(evidence[0] / 1.5)
    warm[[0, 1], drafts] = 0
    expected = np.array(lengths)[:, None] * warm / warm.sum(axis=1, keepdims=True)
    calibration = replace(
        Calibration.identity(),
        coefficients=jnp.asarray(coefficients, jnp.float32),
        anchor_temperature=jnp.asarray(1.5),
    )
    outcomes = select(evidence, drafts, 9, author=author, calibration=calibration)
    assert len(keys(outcomes)) == 7
    found = np.exp(outcomes.log_score[0, :7])
    np.testing.assert_allclose(found, [expected[key] for key in keys(outcomes)], atol=ROUNDING)


def test_features_stay_within_their_limit():
    evidence = jnp.asarray([[[1e4, 0.0], [-INF, 0.0], [0.0, -INF], [0.0, 0.0]]])
    features = _features(evidence, jnp.asarray([[0, 0, 0]]), jnp.asarray([[1e-7, -INF, -1e-9]]))[0]
    limit = FEATURE_LIMIT
    np.testing.assert_allclose(features[:, 1:4], [[limit] * 3, [-limit] * 3, [limit] * 3])
    np.testing.assert_allclose(features[:, 4], np.log([1, 2, 3]), rtol=1e-6)
    np.testing.assert_allclose(features[:, 5], 0.0)


@pytest.mark.parametrize(
    ("threshold", "num_valid"),
    [
        # Scores of the example: .24, .16, .16, .12, .12, .1, .1; the mass before each: 0, .24, .4, .56, .68, .8, .9
        pytest.param(0.0, 1, id="best-only"),
        pytest.param(0.23, 1, id="just-below-the-first"),
        pytest.param(0.25, 2, id="just-above-the-first"),
        pytest.param(0.7, 5, id="most"),
        pytest.param(1.0, 7, id="no-pruning"),
    ],
)
def test_conformal_threshold_prunes_what_follows_its_mass(threshold, num_valid):
    calibration = replace(Calibration.identity(), conformal_threshold=jnp.asarray(threshold))
    outcomes = select(EXAMPLE, [0, 1], 9, calibration=calibration)
    assert len(keys(outcomes)) == num_valid
    kept = np.array([0.24, 0.16, 0.16, 0.12, 0.12, 0.1, 0.1])[:num_valid]
    assert float(outcomes.mass[0]) == pytest.approx(kept.sum(), abs=ROUNDING)
    others = select(EXAMPLE, [0, 1], 9, rule="uncalibrated", calibration=calibration)
    assert len(keys(others)) == 7


@pytest.mark.parametrize(
    ("num_rounds", "coverage", "expected"),
    [
        # Masses 0, 1/n, 2/n, ...; the ⌈(n+1) coverage⌉-th smallest.
        pytest.param(9, 0.9, 8 / 9, id="largest"),
        pytest.param(8, 0.9, 1.0, id="too-few"),
        pytest.param(0, 0.5, 1.0, id="none"),
        pytest.param(99, 0.9, 89 / 99, id="90th-of-99"),
        pytest.param(99, 0.07, 6 / 99, id="7th-of-99-despite-rounding"),
        pytest.param(100, 0.9, 90 / 100, id="91st-of-100"),
    ],
)
def test_conformal_threshold_is_a_corrected_quantile(num_rounds, coverage, expected):
    masses = np.random.default_rng(0).permutation(np.arange(num_rounds) / max(num_rounds, 1))
    assert conformal_threshold(masses, coverage) == expected


def test_conformal_threshold_covers_new_rounds_of_an_overconfident_decoder():
    num_rounds, coverage = 2000, 0.9
    rng = np.random.default_rng(3)
    truth = rng.dirichlet(np.ones(4), size=(num_rounds, 3))
    evidence, drafts = (
        jnp.asarray(2 * np.log(truth), jnp.float32),
        jnp.asarray(np.argmax(truth, axis=-1)[:, :2], jnp.int32),
    )
    draws = (rng.random((num_rounds, 3, 1)) > np.cumsum(truth, axis=-1)).sum(axis=-1).astype(np.int32)
    accepted = np.asarray(num_accepted(drafts, jnp.asarray(draws)))
    anchor = draws[np.arange(num_rounds), accepted]

    options = {"num_outcomes": 12, "rule": "calibrated"}
    ranked = _select(evidence, drafts, jnp.zeros((num_rounds, 2)), calibration=Calibration.identity(), **options)
    is_true = (np.asarray(ranked.num_accepted) == accepted[:, None]) & (np.asarray(ranked.anchor) == anchor[:, None])
    assert np.all((is_true & np.asarray(ranked.is_valid)).sum(axis=1) == 1)
    scores = np.exp(ranked.log_score)
    before = np.clip(np.cumsum(scores, axis=1) - scores, 0, 1)[is_true]
    threshold = conformal_threshold(before[:1000].astype(np.float64), coverage)
    assert threshold > coverage  # what the decoder takes for 90% is less

    calibration = replace(Calibration.identity(), conformal_threshold=jnp.asarray(threshold, jnp.float32))
    pruned = _select(evidence, drafts, jnp.zeros((num_rounds, 2)), calibration=calibration, **options)
    covered = (is_true & np.asarray(pruned.is_valid)).any(axis=1)[1000:].mean()
    assert coverage - 0.03 < covered < coverage + 0.03  # 3 standard deviations of 1,000 rounds
    assert np.asarray(pruned.is_valid).sum() < 0.9 * np.asarray(ranked.is_valid).sum()


@pytest.mark.parametrize(("masses", "coverage"), [([0.5], 1.0), ([0.5], 0.0), ([1.5], 0.9), ([np.nan], 0.9)])
def test_conformal_errors_name_the_values(masses, coverage):
    with pytest.raises(ValueError, match=f"coverage={coverage}.*{masses[0]}"):
        conformal_threshold(np.array(masses), coverage)
