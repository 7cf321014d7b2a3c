"""Records of acceptance: per set and point, merged, and kept when a later point fails."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.checkpoints.calibration_file import CalibrationEntry
from jetspec_jax.config import draft_config_for
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.evaluation.acceptance import measure_acceptance
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import OraclePredictor, TableTarget
from train.evaluate import (
    EvaluationPoint,
    calibrated_drafting,
    calibration_points,
    evaluate_sets,
    standard_points,
)

SETS = {"short": [[5], [6, 7]], "long": [[1, 2, 3, 4], [9] * 6, [8] * 5]}
OPTIONS = {"max_new_tokens": 12, "batch_size": 3}


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Programs that run for a moment each."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    law = np.random.default_rng(0).dirichlet(np.full(10, 0.7), 10)
    return LanguageModel(TableTarget(np.log(law)), drafter=None)


@pytest.fixture(scope="module")
def trained(model) -> JetSpecPP:
    draft = Draft(draft_config_for(model.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))
    return JetSpecPP(draft, OraclePredictor(model.target)).with_drafting(num_drafts=3)


def test_record_holds_each_set_at_each_point(model, trained, tmp_path):
    path = tmp_path / "tau.json"
    path.write_text(json.dumps({"configurations": {"earlier": {"mean": 2.0}}, "points": {"earlier": {}}}))
    points = [EvaluationPoint(name="greedy"), EvaluationPoint(name="warm", temperature=1.0)]
    notes: list[str] = []
    record = evaluate_sets(model, lambda p: p.drafter(trained), SETS, points, path, **OPTIONS, note=notes.append)
    assert json.loads(path.read_text()) == record
    assert set(record["configurations"]) == {"earlier", "greedy", "warm"}
    assert {"device", "versions", "command", "date"} <= set(record)
    greedy = record["configurations"]["greedy"]
    assert greedy["mean"] == (greedy["short"]["tau"] + greedy["long"]["tau"]) / 2
    assert greedy["long"]["tokens"] == 3 * 11
    # Sets that are decoded together are counted apart, as if alone.
    alone = measure_acceptance(model.with_drafter(points[0].drafter(trained)), SETS["long"], **OPTIONS)
    assert greedy["long"]["tau"] == alone.tau
    assert greedy["long"]["acceptance_at"] == alone.acceptance_at
    assert record["points"]["warm"]["temperature"] == 1.0
    assert record["points"]["warm"]["prompts"] == {"short": 2, "long": 3}
    assert [note.split(":")[0] for note in notes] == ["greedy", "warm"]


def test_points_before_a_failure_are_kept(model, trained, tmp_path):
    path = tmp_path / "tau.json"

    def drafting(point: EvaluationPoint) -> JetSpecPP:
        if point.name == "second":
            raise RuntimeError("killed")
        return point.drafter(trained)

    points = [EvaluationPoint(name="first"), EvaluationPoint(name="second")]
    with pytest.raises(RuntimeError, match="killed"):
        evaluate_sets(model, drafting, SETS, points, path, **OPTIONS, note=lambda line: None)
    assert list(json.loads(path.read_text())["configurations"]) == ["first"]


def test_standard_points_are_distinct_and_complete():
    points = standard_points()
    assert len({point.name for point in points}) == len(points) == 17
    assert {point.num_outcomes for point in points} == {0, 1, 2, 4, 8, 16}
    assert {(point.temperature, point.couple_noise) for point in points if point.temperature} == {
        (0.7, True),
        (0.7, False),
        (1.0, True),
        (1.0, False),
    }


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("J0", {}),
        ("J1-R1 B=4", {"num_outcomes": 4}),
        ("J3-R3 B=16 T=0.7 plain", {"num_outcomes": 16, "temperature": 0.7, "couple_noise": False}),
        ("J3 T=1", {"temperature": 1.0}),
        ("J1-R1 int8", {"draft_weights": "int8"}),
        ("J1-R1 fp8", {"draft_weights": "fp8"}),
    ],
)
def test_point_is_read_from_its_name(name, fields):
    assert EvaluationPoint.parse(name) == EvaluationPoint(name=name, refine=name.split()[0], **fields)


@pytest.mark.parametrize("name", ["", "B=4", "J1-R1 b=4", "J1-R1 T=-1", "J1-R1 B=4.5"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="is not of the form"):
        EvaluationPoint.parse(name)


def test_calibration_is_used_where_blocks_are_drafted_ahead(trained):
    entry = CalibrationEntry(
        temperature=0.0,
        refine="J1-R1",
        num_outcomes=4,
        coefficients=(0.0, 1.0, 0.0, 0.0, 0.0, 0.0),
        anchor_temperature=1.0,
        conformal_threshold=0.9,
        decision_temperature=0.5,
        num_rounds=10,
    )
    at = calibrated_drafting(trained, [entry])
    found = at(EvaluationPoint.parse("J1-R1 B=2"))
    assert (found.drafting.outcome_rule, found.drafting.decision_temperature) == ("calibrated", 0.5)
    assert float(found.calibration.conformal_threshold) == np.float32(0.9)
    assert at(EvaluationPoint.parse("J1-R1")).calibration is None
    other = at(EvaluationPoint(name="x", refine="J1-R1", num_outcomes=2, outcome_rule="geometric"))
    assert other.drafting.outcome_rule == "geometric"
    hot = replace(entry, temperature=1.0)
    plain = calibrated_drafting(trained, [hot])(EvaluationPoint.parse("J1-R1 B=2 T=1 plain"))
    assert plain.calibration is None  # fitted for coupled noise
    assert calibrated_drafting(trained, [])(EvaluationPoint.parse("J1-R1 B=2")).calibration is None


def test_points_to_calibrate_draft_ahead():
    points = calibration_points()
    assert all(point.num_outcomes for point in points)
    assert {point.refine for point in points} == {"J1-R1", "J3-R3"}


def test_point_drafts_as_it_says(trained):
    point = EvaluationPoint(name="B=2", refine="J1-R1", num_outcomes=2, decision_temperature=0.5, couple_noise=False)
    drafting = point.drafter(trained).drafting
    assert (drafting.refine.name, drafting.num_outcomes, drafting.decision_temperature) == ("J1-R1", 2, 0.5)
    assert not drafting.couple_noise


@pytest.mark.parametrize(
    ("sets", "names"),
    [({"mean": [[1]]}, ["a"]), ({"x": []}, ["a"]), ({}, ["a"]), ({"x": [[1]]}, ["a", "a"])],
    ids=["set-called-mean", "empty-set", "no-set", "same-name-twice"],
)
def test_sets_and_points_must_be_distinguishable(model, trained, tmp_path, sets, names):
    points = [EvaluationPoint(name=name) for name in names]
    with pytest.raises(ValueError, match="distinct points and non-empty sets"):
        evaluate_sets(model, lambda p: p.drafter(trained), sets, points, tmp_path / "tau.json")
