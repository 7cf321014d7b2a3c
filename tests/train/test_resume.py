"""A run stopped and started again, in new processes, is the uninterrupted one to the bit (C34), also after `kill -9` at
random moments (C35).

Trainers are forked from one process that has imported everything and never starts JAX's backend.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest

from train import checkpoint_folder
from train.checkpoints import Checkpoints
from train.loop import run
from train.optimizer import OptimizerConfig, make_optimizer
from train.run_config import RunConfig
from train.step import init_state
from train.testing import ToySource, ToyTask

OPTIMIZER = OptimizerConfig(peak_lr=0.1, total_steps=20)
SOURCE = ToySource(33)  # 8 batches of 4 an epoch
NUM_STEPS, MID_EPOCH, EPOCH_END = 20, 12, 16


@dataclass(frozen=True)
class InterruptedTask(ToyTask):
    """Asks the run to end, as a cluster does, while it measures at a step."""

    at_step: int = 0

    def evaluate(self, params, step):
        if step == self.at_step:
            signal.raise_signal(signal.SIGTERM)
        return super().evaluate(params, step)


def train(folder: Path, num_steps: int, *, save_every: int, task: ToyTask):
    config = RunConfig(
        folder=folder, num_steps=num_steps, global_batch=4, seed=5, eval_every=4, save_every=save_every, log_every=1
    )
    return run(task, SOURCE, OPTIMIZER, config)


def start(folder: Path, num_steps: int, save_every: int) -> int:
    """Forks a trainer."""
    pid = os.fork()
    if not pid:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (of a process that is killed)
        code = 1
        try:
            train(folder, num_steps, save_every=save_every, task=ToyTask())
            code = 0
        finally:
            os._exit(code)
    return pid


def finish(folder: Path, num_steps: int, save_every: int) -> None:
    assert os.waitpid(start(folder, num_steps, save_every), 0)[1] == 0


def kill_once(folder: Path, num_steps: int, newest: int, pattern: str, seconds: float) -> int:
    """Lets a trainer go on until a later folder matches, and a moment more; returns the newest step after the kill."""
    pid = start(folder, num_steps, 1)
    while not any(int(path.name.split(".")[0]) > newest for path in folder.glob(pattern)):
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the trainer ended by itself"
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    named = [path for path in folder.glob("checkpoints/*") if path.name.isdecimal()]
    broken = {path.name: reason for path in named if (reason := checkpoint_folder.what_is_missing(path))}
    assert not broken, broken
    steps = sorted(int(path.name) for path in named)
    assert not newest or steps[-1] >= newest, (newest, steps)
    return steps[-1] if steps else 0


def kill_often(folder: Path, num_steps: int, num_kills: int) -> dict:
    rng = random.Random(0)
    newest = num_halves = 0
    for kill in range(num_kills):
        # In turn: soon after a writer has begun, and soon after one is done.
        pattern = "checkpoints/*[0-9]" if kill % 2 else "checkpoints/*.incomplete"
        newest = kill_once(folder, num_steps, newest, pattern, rng.uniform(0, 0.3))
        num_halves += any(folder.glob("checkpoints/*.incomplete"))
    finish(folder, num_steps, 1)
    return {"newest_at_last_kill": newest, "half_written": num_halves}


FORKS = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")  # of forking
import json, grain
from pathlib import Path
from test_resume import NUM_STEPS, finish, kill_often
killed, num_kills, num_steps, *stopped = sys.argv[2:]
for folder in stopped:
    finish(Path(folder), NUM_STEPS, 6)
print(json.dumps(kill_often(Path(killed), int(num_steps), int(num_kills))))
"""


def fork_trainers(killed: Path, num_kills: int, num_steps: int, stopped: list[Path]) -> dict:
    """In one new process: finishes the stopped runs, then kills and finishes one."""
    here = str(Path(__file__).parent)
    arguments = [sys.executable, "-c", FORKS, here, *map(str, [killed, num_kills, num_steps, *stopped])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.getcwd(),
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or "",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines(folder: Path, name: str) -> list[dict]:
    records = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def final_state(folder: Path) -> list[np.ndarray]:
    like = init_state(ToyTask().init_params(0), make_optimizer(OPTIMIZER))
    restored = Checkpoints(folder / "checkpoints", 3).restore(like)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(restored.state)]


def assert_same_run(folder: Path, whole: Path, num_steps: int) -> None:
    for ours, theirs in zip(final_state(folder), final_state(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [record["step"] for record in lines(folder, "metrics")] == list(range(1, num_steps + 1))
    assert lines(folder, "metrics") == lines(whole, "metrics")  # loss, rate, ids of the batch
    assert lines(folder, "evaluations") == lines(whole, "evaluations")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "whole", NUM_STEPS, save_every=6, task=ToyTask())
    for name, step in (("mid-epoch", MID_EPOCH), ("epoch-end", EPOCH_END)):
        result = train(folder / name, NUM_STEPS, save_every=6, task=InterruptedTask(at_step=step))
        assert (result.step, result.stopped_by) == (step, "signal")
    report = fork_trainers(folder / "killed", 2, NUM_STEPS, [folder / "mid-epoch", folder / "epoch-end"])
    assert report["newest_at_last_kill"] > 0
    return folder


@pytest.mark.parametrize("name", ["mid-epoch", "epoch-end", "killed"])
def test_a_run_resumed_by_a_new_process_is_the_uninterrupted_one_bitwise(runs, name):
    assert_same_run(runs / name, runs / "whole", NUM_STEPS)


@pytest.mark.slow
def test_twenty_kills_lose_nothing(tmp_path):
    num_steps = 100
    train(tmp_path / "whole", num_steps, save_every=6, task=ToyTask())
    report = fork_trainers(tmp_path / "killed", 20, num_steps, [])
    print(report)
    assert report["half_written"] > 0  # some kills did hit a writer
    assert_same_run(tmp_path / "killed", tmp_path / "whole", num_steps)
