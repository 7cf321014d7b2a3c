"""Calibration finds known coefficients and temperatures, and corrects a decoder that is wrong in a known way."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.checkpoints.calibration_file import CalibrationEntry, load_calibrations, save_calibrations
from jetspec_jax.config import draft_config_for
from jetspec_jax.decoding.outcomes import Calibration, calibration_features, conformal_threshold
from jetspec_jax.decoding.verify import NO_TOKEN, num_accepted
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.evaluation.acceptance import measure_acceptance
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import OraclePredictor, TableTarget
from train.calibrate import (
    IDENTITY,
    best_temperature,
    calibrate,
    calibrate_points,
    calibration_error,
    fit_acceptance,
    fit_scores,
)
from train.evaluate import EvaluationPoint
from train.outcome_rounds import ANCHOR_TEMPERATURES, OutcomeRecord, RecordingPrograms, collect_rounds, record_outcome

_record = jax.jit(record_outcome)
NUM_OUTCOMES = 3


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Programs that run for a moment each."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def test_fit_recovers_known_coefficients():
    rng = np.random.default_rng(0)
    known = np.array([0.4, 0.6, 0.3, 0.2, -0.5, -0.3])
    features = np.column_stack(
        [
            np.ones(40_000),
            *(np.clip(rng.normal(0, 3, (3, 40_000)), -12, 12)),
            np.log(rng.integers(1, 16, 40_000)),
            rng.gamma(2.0, 0.7, 40_000),
        ]
    )
    is_accepted = rng.random(40_000) < 1 / (1 + np.exp(-features @ known))
    # Three standard errors of the noisiest, the intercept.
    np.testing.assert_allclose(fit_acceptance(features, is_accepted), known, atol=0.12)


@pytest.mark.parametrize("num_drafts", [1, 30])
def test_drafts_that_are_always_accepted_leave_coefficients_finite(num_drafts):
    features = np.tile([1.0, 12.0, 12.0, 12.0, 0.0, 0.0], (num_drafts, 1))
    found = fit_acceptance(features, np.ones(num_drafts, bool))
    np.testing.assert_allclose(found, IDENTITY, atol=0.01)


@pytest.mark.parametrize("features", [np.zeros((0, 6)), np.full((2, 6), np.nan)], ids=["none", "nan"])
def test_fit_refuses_what_it_cannot_use(features):
    with pytest.raises(ValueError, match=rf"at least one draft, got shape \({len(features)}, 6\)"):
        fit_acceptance(features, np.zeros(len(features), bool))


def test_anchor_temperature_is_recovered_from_draws():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 4, (6000, 12))
    noise = rng.gumbel(size=logits.shape)
    draws = np.argmax(logits / 2.6 + noise, axis=1)
    nll = [
        np.mean(np.log(np.exp(logits / t).sum(axis=1)) - logits[np.arange(6000), draws] / t)
        for t in ANCHOR_TEMPERATURES
    ]
    assert best_temperature(ANCHOR_TEMPERATURES, np.array(nll)) == pytest.approx(2.6, rel=0.05)


def test_temperature_at_the_edge_of_the_grid_stays_there():
    assert best_temperature(ANCHOR_TEMPERATURES, ANCHOR_TEMPERATURES.copy()) == ANCHOR_TEMPERATURES[0]
    assert best_temperature(ANCHOR_TEMPERATURES, -ANCHOR_TEMPERATURES) == ANCHOR_TEMPERATURES[-1]


def test_calibration_error_by_hand():
    probs, is_true = np.array([0.1, 0.1, 0.9, 0.9]), np.array([True, False, True, True])
    # Bins [0, .5): predicted .1, found .5; [.5, 1]: predicted .9, found 1.
    assert calibration_error(probs, is_true, num_bins=2) == pytest.approx(0.5 * 0.4 + 0.5 * 0.1)
    assert calibration_error(np.array([1.0]), np.array([True])) == 0


def test_record_of_a_round_by_hand():
    """Drafts 0 and 1, of which the second is rejected and replaced by 2; and a request that had ended."""
    evidence = jnp.log(jnp.asarray([[[0.8, 0.12, 0.08], [0.2, 0.5, 0.3], [0.3, 0.25, 0.45]]] * 2, jnp.float32))
    drafts = jnp.asarray([[0, 1], [0, NO_TOKEN]], jnp.int32)
    inputs = (evidence, drafts, jnp.log(jnp.asarray([[0.7, 0.2], [0.7, 0.2]])))
    outcome = (jnp.asarray([1, -1], jnp.int32), jnp.asarray([2, 0], jnp.int32))
    found = jax.device_get(_record(*inputs, *outcome, Calibration.identity(), jnp.asarray([1.0, 2.0])))
    # (1,2) .24, (2,2) .18, (1,0) .16: the outcome that came is the best one.
    assert (found.rank[0], found.uncalibrated_rank[0], found.preceding_mass[0]) == (0, 0, 0)
    np.testing.assert_allclose(found.outcome_nll[0, 0], -np.log(0.8 * 0.3), rtol=1e-5)
    np.testing.assert_allclose(found.features[:, 0], calibration_features(*inputs), rtol=1e-6)
    np.testing.assert_allclose(found.features[:, 1], calibration_features(evidence / 2, *inputs[1:]), rtol=1e-6)
    at_one = len(ANCHOR_TEMPERATURES) // 2
    assert ANCHOR_TEMPERATURES[at_one] == pytest.approx(1.0)
    np.testing.assert_allclose(found.anchor_nll[0, at_one], -np.log(0.3 / 0.5), rtol=1e-5)
    assert found.is_reached.tolist() == [[True, True], [False, False]]
    assert found.is_accepted.tolist() == [[True, False], [False, False]]

    second = _record(*inputs, jnp.asarray([0, 0]), jnp.asarray([1, 0]), Calibration.identity(), jnp.ones(2))
    # (1,2) .24, (2,2) .18, (1,0) .16, then (0,1) .12; the request that drafts nothing after 0 cannot accept two.
    assert int(second.rank[0]) == 3
    np.testing.assert_allclose(second.preceding_mass[0], 0.24 + 0.18 + 0.16, rtol=1e-5)
    # Draft 0 is what k = 0 excludes: the outcome is impossible, and all mass is before it.
    assert (int(second.rank[1]) > 4, float(second.preceding_mass[1])) == (True, 1.0)
    assert np.isinf(second.outcome_nll[1, 0])


class BiasedRounds:
    """Rounds whose drafts are accepted ever more rarely, seen by a decoder that is too sure and does not notice."""

    def __init__(self, num_rounds: int, seed: int, *, num_drafts: int = 5, vocab_size: int = 6):
        rng = np.random.default_rng(seed)
        belief = rng.dirichlet(np.full(vocab_size, 0.6), (num_rounds, num_drafts + 1))
        trust = 0.9 ** np.arange(1, num_drafts + 2)[None, :, None] - 0.05
        law = trust * belief + (1 - trust) / vocab_size
        draws = (rng.random((num_rounds, num_drafts + 1, 1)) > np.cumsum(law, axis=-1)).sum(axis=-1)
        draws = np.minimum(draws, vocab_size - 1).astype(np.int32)
        drafts = np.argmax(belief, axis=-1)[:, :num_drafts].astype(np.int32)
        self.accepted = num_accepted(jnp.asarray(drafts), jnp.asarray(draws))
        self.anchor = jnp.asarray(draws[np.arange(num_rounds), self.accepted])
        self.evidence = jnp.asarray(2.0 * np.log(belief + 1e-9), jnp.float32)
        self.drafts = jnp.asarray(drafts)
        self.logprobs = jnp.asarray(np.log(np.max(belief, axis=-1)[:, :num_drafts]), jnp.float32)

    def record(self, calibration: Calibration, divisors=(1.0,) * 5, *, warmth: float = 1.0) -> OutcomeRecord:
        inputs = (self.evidence / warmth, self.drafts, self.logprobs, self.accepted, self.anchor)
        return jax.device_get(_record(*inputs, calibration, jnp.asarray(divisors, jnp.float32)))


def test_calibration_corrects_a_biased_decoder():
    divisors = np.geomspace(0.25, 4, 5)
    fitted = fit_scores(BiasedRounds(5000, seed=0).record(Calibration.identity(), divisors), divisors)
    # The evidence is twice as sure as the belief, and the belief itself is too sure.
    warmth = float(divisors[fitted.decision_divisor])
    assert warmth >= 2
    calibration = Calibration(
        jnp.asarray(fitted.coefficients, jnp.float32), jnp.asarray(fitted.anchor_temperature), jnp.ones(())
    )
    new = BiasedRounds(5000, seed=1).record(calibration, warmth=warmth)
    plain = BiasedRounds(5000, seed=1).record(calibration)
    before, at_warmth, after = (
        np.mean(rank < NUM_OUTCOMES) for rank in (plain.uncalibrated_rank, new.uncalibrated_rank, new.rank)
    )
    # One standard error of a difference of paired shares is about .005.
    assert after > before + 0.02
    assert after >= at_warmth
    reached = new.is_reached
    features, is_accepted = new.features[:, 0][reached], new.is_accepted[reached]
    errors = [
        calibration_error(1 / (1 + np.exp(-features @ np.array(weights))), is_accepted)
        for weights in (IDENTITY, fitted.coefficients)
    ]
    assert errors[1] < min(0.02, errors[0])

    # The mass that is promised is found: outcomes before the threshold cover what they should.
    threshold = conformal_threshold(new.preceding_mass[:2500], 0.9)
    assert np.mean(new.preceding_mass[2500:] <= threshold) > 0.9 - 0.025  # three standard errors, both halves


# Token 4 ends the text; it is rare, so that texts end at different lengths but seldom at once.
P = np.random.default_rng(0).dirichlet(np.full(5, 0.7), 5) * [1, 1, 1, 1, 0] * 0.98 + [0, 0, 0, 0, 0.02]
P /= P.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def table_model() -> LanguageModel:
    return LanguageModel(TableTarget(np.log(P + 1e-9), eos_token_ids=(4,)), drafter=None)


@pytest.fixture(scope="module")
def untrained(table_model) -> JetSpecPP:
    """A random draft beside a predictor that is the target itself."""
    draft = Draft(draft_config_for(table_model.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))
    drafting = DraftingConfig(num_drafts=2, num_outcomes=2, refine=RefineConfig.parse("J0"), couple_noise=False)
    return JetSpecPP(draft, OraclePredictor(table_model.target), drafting=drafting)


PROMPTS = [[index % 4] * (1 + index % 3) for index in range(9)]
OPTIONS = {"temperature": 1.0, "max_new_tokens": 120, "batch_size": 3}


def test_recorded_rounds_are_the_served_ones(table_model, untrained):
    """The rank of each outcome says whether serving hit, round by round; ended texts leave no rounds."""
    drafter = untrained.with_drafting(calibration=Calibration.identity(), outcome_rule="calibrated")
    prompts = sorted(PROMPTS, key=len)[:6]
    rounds, owners = collect_rounds(table_model, drafter, prompts, **OPTIONS)
    served = measure_acceptance(table_model, prompts, drafter=drafter, keep_answers=True, **OPTIONS)
    hits = [hit for answer in served.answers for hit in answer.stats.hits]
    assert len(hits) > 30
    assert len({len(answer.token_ids) for answer in served.answers}) > 2
    assert (rounds.rank < 2).tolist() == hits
    assert owners.tolist() == [i for i, answer in enumerate(served.answers) for _ in answer.stats.hits]
    committed = [count for answer in served.answers for count in answer.stats.committed[:-1]]
    assert (rounds.num_accepted + 1).tolist() == committed
    # A perfect decoder: what it promises for the two best outcomes is what serving promised.
    mass = [value for answer in served.answers for value in answer.stats.cache_mass]
    assert np.mean(rounds.preceding_mass[rounds.rank == 2]) == pytest.approx(
        np.mean([value for value, rank in zip(mass, rounds.rank, strict=True) if rank == 2]), rel=1e-4
    )


def test_calibration_is_written_beside_others_and_serves(table_model, untrained, tmp_path):
    path = tmp_path / "calibration.json"
    other = CalibrationEntry(
        temperature=0.0,
        refine="J0",
        num_outcomes=2,
        coefficients=tuple(IDENTITY.tolist()),
        anchor_temperature=1.0,
        conformal_threshold=1.0,
        decision_temperature=0.5,
        num_rounds=1,
    )
    save_calibrations(path, [other, replace(other, temperature=1.0)])
    notes: list[str] = []
    point = EvaluationPoint(name="T=1", temperature=1.0, num_outcomes=2, couple_noise=False)
    options = {"max_new_tokens": 120, "batch_size": 3, "coverage": 0.8}
    found = calibrate_points(table_model, untrained, [point], PROMPTS, path, note=notes.append, **options)
    assert load_calibrations(path) == found
    kept, entry = found
    assert kept == other
    assert entry.key == (1.0, "J0", 2)
    assert entry.decision_temperature == 0.25  # chance decides, so it is not looked at
    assert entry.coverage == 0.8
    assert 0 < entry.conformal_threshold < 1
    assert entry.num_rounds > 60
    # The predictor is the target: its own probabilities need no other temperature.
    assert entry.anchor_temperature == pytest.approx(1.0, abs=0.5)
    assert notes[0].startswith("T=1: CalibrationEntry")


def test_errors_name_the_values(table_model, untrained):
    with pytest.raises(ValueError, match="at least 3 prompts, got 2"):
        calibrate(table_model, untrained, PROMPTS[:2], temperature=0.0)
    with pytest.raises(ValueError, match="num_outcomes=0, outcome_rule='uncalibrated'"):
        RecordingPrograms(table_model, untrained.with_drafting(num_outcomes=0), [1.0])
    calibrated = untrained.with_drafting(calibration=Calibration.identity(), outcome_rule="calibrated")
    with pytest.raises(ValueError, match="1 prompts with max_new_tokens=1 gave no round"):
        collect_rounds(table_model, calibrated, [[1]], temperature=1.0, max_new_tokens=1, batch_size=3)
    recorded = jax.tree.map(jnp.asarray, BiasedRounds(5000, seed=0).record(Calibration.identity()))
    impossible = replace(recorded, outcome_nll=jnp.full((5000, 5), jnp.inf))
    with pytest.raises(ValueError, match="none of 5000 outcomes was possible"):
        fit_scores(impossible, np.ones(5))
