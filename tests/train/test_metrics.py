"""Logs: readable after any end, no step twice."""

import json

import numpy as np
import pytest

from train.metrics import JsonLines, MetricsLog


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path, last_step: int, steps) -> None:
    lines = JsonLines(path, last_step)
    for step in steps:
        lines.write(step, {"loss": step / 2})
    lines.sync()
    lines.close()


def test_lines_beyond_the_restored_step_are_dropped(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, 0, [1, 2, 3, 4, 5])
    write(path, 3, [4, 5, 6])
    assert [line["step"] for line in read(path)] == [1, 2, 3, 4, 5, 6]


def test_a_line_cut_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, 0, [1, 2])
    path.write_text(path.read_text() + '{"step": 3, "lo')
    write(path, 2, [3])
    assert [line["step"] for line in read(path)] == [1, 2, 3]


def test_every_line_is_valid_json_also_for_nan(tmp_path):
    lines = JsonLines(tmp_path / "m.jsonl", 0)
    lines.write(1, {"loss": float("nan"), "grad_norm": float("inf"), "weight": 0.0})
    assert read(tmp_path / "m.jsonl") == [{"step": 1, "loss": None, "grad_norm": None, "weight": 0.0}]  # already there
    lines.close()


@pytest.mark.parametrize("logger", ["none", "tensorboard"])
def test_files_of_a_run(tmp_path, logger):
    log = MetricsLog(tmp_path, logger, last_step=0, last_evaluation=0)
    log.training(1, {"loss": 0.5})
    log.skipped(2, [7, 8], {"loss": float("nan")})
    log.evaluation(2, {"tau": 1.5})
    log.sync()
    log.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 0.5}]
    assert read(tmp_path / "skipped_steps.jsonl") == [{"step": 2, "ids": [7, 8], "loss": None}]
    assert read(tmp_path / "evaluations.jsonl") == [{"step": 2, "tau": 1.5}]
    events = list((tmp_path / "tensorboard").iterdir()) if logger == "tensorboard" else []
    assert (tmp_path / "tensorboard").exists() == (logger == "tensorboard")
    assert all(b"train/loss" in path.read_bytes() for path in events)
    assert np.all([path.stat().st_size > 0 for path in events])
