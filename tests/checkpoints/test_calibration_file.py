"""`calibration.json`: written and read without loss, bad values refused, the nearest entry found."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from jetspec_jax.checkpoints.calibration_file import (
    CalibrationEntry,
    load_calibrations,
    nearest,
    save_calibrations,
)
from jetspec_jax.checkpoints.reader import CheckpointError

NAN, INF = float("nan"), float("inf")
ENTRY = CalibrationEntry(
    temperature=0.0,
    refine="J1-R1",
    num_outcomes=4,
    coefficients=(0.25, 1.5, -0.125, 0.1, 1e-9, -3.0),
    anchor_temperature=0.8,
    conformal_threshold=0.97,
    decision_temperature=0.25,
    num_rounds=1234,
    coverage=0.95,
)
WARM = replace(ENTRY, temperature=1.0, coverage=None)


def test_round_trip_is_exact(tmp_path):
    path = tmp_path / "calibration.json"
    save_calibrations(path, [ENTRY, WARM])
    assert load_calibrations(path) == [ENTRY, WARM]
    assert list(tmp_path.iterdir()) == [path]


def test_becomes_the_arrays_of_a_calibration():
    calibration = ENTRY.to_calibration()
    np.testing.assert_array_equal(calibration.coefficients, np.array(ENTRY.coefficients, np.float32))
    assert float(calibration.anchor_temperature) == np.float32(0.8)
    assert float(calibration.conformal_threshold) == np.float32(0.97)


BAD = [
    pytest.param({"coefficients": (1.0,) * 5}, "need 6 finite coefficients", id="five-coefficients"),
    pytest.param({"coefficients": (0.0, NAN, 0.0, 0.0, 0.0, 0.0)}, "need 6 finite coefficients", id="nan-coefficient"),
    pytest.param({"anchor_temperature": 0.0}, "anchor_temperature=0.0 must be", id="anchor-temperature-0"),
    pytest.param({"anchor_temperature": NAN}, "anchor_temperature=nan must be", id="anchor-temperature-nan"),
    pytest.param({"conformal_threshold": 1.5}, "conformal_threshold=1.5 must be in", id="threshold-above-1"),
    pytest.param({"conformal_threshold": -0.1}, "conformal_threshold=-0.1 must be in", id="threshold-below-0"),
    pytest.param({"conformal_threshold": NAN}, "conformal_threshold=nan must be in", id="threshold-nan"),
    pytest.param({"decision_temperature": INF}, "decision_temperature=inf must be", id="decision-temperature-inf"),
    pytest.param({"temperature": -1.0}, "temperature=-1.0 must be", id="negative-temperature"),
    pytest.param({"num_outcomes": 0}, "num_outcomes=0", id="no-outcomes"),
    pytest.param({"num_rounds": 0}, "num_rounds=0", id="no-rounds"),
    pytest.param({"coverage": 0.0}, "coverage=0.0 must be in", id="coverage-0"),
    pytest.param({"refine": "R1"}, "refinement 'R1'", id="refinement"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_refuses_bad_values_when_they_are_made(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(ENTRY, **changes)


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_refuses_bad_values_in_a_file(tmp_path, changes, message):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"format_version": 1, "entries": [asdict(ENTRY), asdict(WARM) | changes]}))
    with pytest.raises(CheckpointError, match=f"calibration.json: entry 1: .*{message}"):
        load_calibrations(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "not a calibration file", id="not-json"),
        pytest.param("[]", "not a calibration file", id="a-list"),
        pytest.param('{"entries": []}', "format_version", id="no-version"),
        pytest.param('{"format_version": 2, "entries": []}', "format_version=2 is not supported", id="later-version"),
        pytest.param('{"format_version": 1, "entries": [{"refine": "J0"}]}', "expected the keys", id="missing-keys"),
        pytest.param('{"format_version": 1, "entries": [7]}', "expected the keys", id="a-number"),
    ],
)
def test_refuses_other_files(tmp_path, content, message):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=message):
        load_calibrations(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"num_outcomes": 4.0}, "num_outcomes=4.0 is not a whole number", id="float-count"),
        pytest.param({"conformal_threshold": "1"}, "conformal_threshold='1' is not a number", id="text"),
        pytest.param({"coefficients": 3}, "not iterable", id="one-coefficient"),
        pytest.param({"coefficients": [None] * 6}, "coefficients=None is not a number", id="null-coefficients"),
    ],
)
def test_refuses_values_of_another_type(tmp_path, changes, message):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"format_version": 1, "entries": [asdict(ENTRY) | changes]}))
    with pytest.raises(CheckpointError, match=message):
        load_calibrations(path)


def test_refuses_two_entries_for_the_same_conditions(tmp_path):
    twice = [ENTRY, replace(ENTRY, num_rounds=7)]
    with pytest.raises(ValueError, match="several calibrations"):
        save_calibrations(tmp_path / "calibration.json", twice)
    path = tmp_path / "by-hand.json"
    path.write_text(json.dumps({"format_version": 1, "entries": [asdict(entry) for entry in twice]}))
    with pytest.raises(CheckpointError, match="several calibrations"):
        load_calibrations(path)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param((0.1, "J1-R1", 4), (0.0, "J1-R1", 4), id="nearest-temperature"),
        pytest.param((0.9, "J1-R1", 4), (1.0, "J1-R1", 16), id="temperature-before-outcomes"),
        pytest.param((0.0, "J1-R1", 1), (0.0, "J1-R1", 2), id="nearest-outcomes"),
        pytest.param((1.0, "J3-R3", 16), (0.0, "J3-R3", 4), id="refinement-before-temperature"),
    ],
)
def test_finds_the_nearest_entry(wanted, expected):
    keys = [(0.0, "J1-R1", 4), (0.0, "J1-R1", 2), (1.0, "J1-R1", 16), (0.0, "J3-R3", 4)]
    names = ("temperature", "refine", "num_outcomes")
    entries = [replace(ENTRY, **dict(zip(names, key, strict=True))) for key in keys]
    assert nearest(entries, **dict(zip(names, wanted, strict=True))).key == expected


def test_finds_nothing_for_another_refinement():
    assert nearest([ENTRY], temperature=0.0, refine="J3-R3", num_outcomes=4) is None


def test_finds_nothing_among_nothing():
    assert nearest([], temperature=0.0, refine="J0", num_outcomes=4) is None
