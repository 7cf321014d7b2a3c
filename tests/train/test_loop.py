"""The loop on a toy task: evaluations, best parameters, skipped steps, stops, errors. Resume is in `test_resume.py`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from train.loop import TooManySkippedSteps, run
from train.optimizer import OptimizerConfig
from train.run_config import RunConfig
from train.testing import ToySource, ToyTask

OPTIMIZER = OptimizerConfig(peak_lr=0.1, total_steps=20)
SOURCE = ToySource(33)  # 8 batches of 4 an epoch


def config_of(folder: Path, **changes) -> RunConfig:
    values = {"num_steps": 20, "global_batch": 4, "seed": 5, "eval_every": 4, "save_every": 6, "log_every": 1}
    return RunConfig(folder=folder, **(values | changes))


def lines(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_the_best_parameters_are_those_with_the_largest_tau(tmp_path):
    taus = {4: 1.0, 8: 3.0, 12: 2.0}
    seen = {}

    class Scripted(ToyTask):
        def evaluate(self, params, step):
            seen[step] = np.array(params["w"])
            return {"tau": taus[step], "hit_rate": 0.5}

    result = run(Scripted(), SOURCE, OPTIMIZER, config_of(tmp_path, num_steps=12, eval_every=4, save_every=100, keep=1))
    assert result.best_step == 8
    np.testing.assert_array_equal(result.best_params["w"], seen[8])
    np.testing.assert_array_equal(result.params["w"], seen[12])
    assert (result.metrics["evaluation/tau"], result.metrics["evaluation/hit_rate"]) == (2.0, 0.5)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["12", "8"]


def test_an_evaluation_that_was_killed_is_made_again(tmp_path):
    class Killed(ToyTask):
        def evaluate(self, params, step):
            raise KeyboardInterrupt

    config = config_of(tmp_path, num_steps=4, eval_every=3)
    with pytest.raises(KeyboardInterrupt):
        run(Killed(), SOURCE, OPTIMIZER, config)
    result = run(ToyTask(), SOURCE, OPTIMIZER, config)
    assert [record["step"] for record in lines(tmp_path, "evaluations")] == [3, 4]
    assert result.step == 4


@pytest.mark.parametrize(
    ("values", "message"), [({"loss": 1.0}, "must measure 'tau'"), ({"tau": float("inf")}, "is inf")]
)
def test_an_evaluation_without_a_usable_tau_is_an_error(tmp_path, values, message):
    class Blind(ToyTask):
        def evaluate(self, params, step):
            return values

    with pytest.raises(ValueError, match=message):
        run(Blind(), SOURCE, OPTIMIZER, config_of(tmp_path, num_steps=1))


def test_given_parameters_are_used_and_not_consumed(tmp_path):
    params = ToyTask().init_params(77)
    before = np.array(params["w"])
    result = run(
        ToyTask(), SOURCE, replace(OPTIMIZER, peak_lr=1e-9), config_of(tmp_path, num_steps=2), init_params=params
    )
    np.testing.assert_array_equal(params["w"], before)
    np.testing.assert_allclose(result.params["w"], before, atol=1e-7)  # the rate is 1e-9


def test_skipped_steps_are_counted_with_their_records_and_training_goes_on(tmp_path):
    result = run(ToyTask(bad_ids=(3,)), SOURCE, OPTIMIZER, config_of(tmp_path, num_steps=8))
    (skipped,) = lines(tmp_path, "skipped_steps")
    assert 3 in skipped["ids"]
    assert len(skipped["ids"]) == 4
    assert skipped["loss"] is None
    assert result.metrics["num_skipped"] == 1
    assert result.step == 8


@pytest.mark.parametrize("log_every", [1, 3])
def test_too_many_skipped_steps_end_the_run_with_the_records_saved(tmp_path, log_every):
    config = config_of(tmp_path, max_skipped_in_a_row=2, log_every=log_every, eval_every=50)
    with pytest.raises(TooManySkippedSteps, match=r"steps 1 to 2 were all skipped .*loss nan.*skipped_steps.jsonl"):
        run(ToyTask(bad_ids=tuple(range(33))), SOURCE, OPTIMIZER, config)
    assert [(record["step"], len(record["ids"])) for record in lines(tmp_path, "skipped_steps")] == [(1, 4), (2, 4)]


def test_a_used_up_time_budget_saves_evaluates_and_the_run_can_go_on(tmp_path):
    config = config_of(tmp_path, max_seconds=1e-6, eval_every=50)
    result = run(ToyTask(), SOURCE, OPTIMIZER, config)
    assert (result.step, result.stopped_by, result.best_step) == (0, "time", 0)
    result = run(ToyTask(), SOURCE, OPTIMIZER, replace(config, max_seconds=None, num_steps=3))
    assert (result.step, result.stopped_by) == (3, None)


def test_a_finished_run_started_again_does_nothing(tmp_path):
    first = run(ToyTask(), SOURCE, OPTIMIZER, config_of(tmp_path, num_steps=2))
    again = run(ToyTask(), SOURCE, OPTIMIZER, config_of(tmp_path, num_steps=2))
    np.testing.assert_array_equal(first.params["w"], again.params["w"])
    assert again.metrics["evaluation/tau"] == first.metrics["evaluation/tau"]
    assert len(lines(tmp_path, "metrics")) == 2


def test_another_runs_folder_is_refused_naming_the_fields(tmp_path):
    run(ToyTask(), SOURCE, OPTIMIZER, config_of(tmp_path, num_steps=2), facts={"num_anchors": 8})
    other = replace(OPTIMIZER, peak_lr=0.2)
    message = (
        r"another run: facts.num_anchors was 8, is 'absent'; optimizer.peak_lr was 0.1, is 0.2; seed was 5, is 6\. "
    )
    with pytest.raises(ValueError, match=message):
        run(ToyTask(), SOURCE, other, config_of(tmp_path, num_steps=2, seed=6))
    run(ToyTask(), SOURCE, OPTIMIZER, config_of(tmp_path, num_steps=3, keep=1, log_every=2), facts={"num_anchors": 8})


def test_rows_without_supervision_are_refused_before_step_1(tmp_path):
    with pytest.raises(ValueError, match="rows have no supervised token"):
        run(ToyTask(), ToySource(33, num_bare=15), OPTIMIZER, config_of(tmp_path))
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch": 3}, "global_batch 3 cannot be split over 2 devices"),
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"logger": "wandb"}, "logger must be 'none' or 'tensorboard', got 'wandb'"),
        ({"max_seconds": 0.0}, "max_seconds must be positive or None, got 0.0"),
        ({"seed": -1}, "seed must be in"),
    ],
)
def test_refuses(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        run(ToyTask(), SOURCE, OPTIMIZER, config_of(tmp_path, **changes))
