"""A checkpoint is whole or not there, whatever stops the writer (C35)."""

import builtins
import errno
import logging
import os
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import checkpoint_folder
from train.checkpoints import Checkpoints
from train.optimizer import OptimizerConfig, make_optimizer
from train.step import TrainState, init_state

OPTIMIZER = make_optimizer(OptimizerConfig(peak_lr=0.1, total_steps=10))


def state_of(step: int, size: int = 3) -> TrainState:
    params = {"w": jax.random.normal(jax.random.key(step), (size,)), "layers": [jnp.full((2, 2), float(step))]}
    return init_state(params, OPTIMIZER)


LIKE = state_of(0)


def save(checkpoints: Checkpoints, step: int, state: TrainState | None = None) -> bool:
    state = state_of(step) if state is None else state
    return checkpoints.save(step, state, loader={"next_index": step}, config={"seed": 1})


def assert_holds(checkpoints: Checkpoints, step: int, like: TrainState = LIKE, size: int = 3) -> None:
    """The newest complete checkpoint is that of `step`, to the bit."""
    restored = checkpoints.restore(like)
    assert (restored.step, restored.loader, restored.config) == (step, {"next_index": step}, {"seed": 1})
    for read, written in zip(jax.tree.leaves(restored.state), jax.tree.leaves(state_of(step, size)), strict=True):
        np.testing.assert_array_equal(read, written)


def names(checkpoints: Checkpoints) -> set[str]:
    return {path.name for path in checkpoints.folder.iterdir()}


def test_reads_back_what_was_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.restore(LIKE) is None
    assert save(checkpoints, 5)
    assert_holds(checkpoints, 5)
    params = checkpoints.load_params(5, LIKE.params)
    np.testing.assert_array_equal(params["w"], state_of(5).params["w"])


def test_keeps_the_newest_and_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, tau in [(1, 1.0), (2, 3.0), (3, 2.0), (4, None), (5, 3.0), (6, None)]:
        save(checkpoints, step)
        if tau is not None:
            checkpoints.set_metrics(step, {"tau": tau})
    assert checkpoints.steps() == [2, 5, 6]
    assert checkpoints.best_step() == 2  # the earliest of equals
    assert checkpoints.metrics(5) == {"tau": 3.0}
    assert names(checkpoints) == {"2", "5", "6"}


def test_a_tau_that_is_not_finite_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, 1)
    with pytest.raises(ValueError, match="tau at step 1 is nan"):
        checkpoints.set_metrics(1, {"tau": float("nan")})
    assert checkpoints.metrics(1) is None


def test_a_second_save_of_a_step_leaves_the_first(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert save(checkpoints, 1)
    assert not save(checkpoints, 1, state_of(2))
    assert_holds(checkpoints, 1)
    assert names(checkpoints) == {"1"}


def test_other_shapes_are_refused_by_name(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, 1)
    with pytest.raises(ValueError, match=r"\.params\['w'\]: saved float32\[3\], wanted float32\[4\]"):
        checkpoints.restore(state_of(0, size=4))


def broken_copies(folder):
    """Ways in which a folder under a final name can be damaged by others: a copy that was cut short."""
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    yield "bytes", lambda: os.truncate(largest, largest.stat().st_size // 2)
    yield "is missing", largest.unlink
    yield "no manifest.json", (folder / "manifest.json").unlink


@pytest.mark.parametrize("reason", ["bytes", "is missing", "no manifest.json"])
def test_a_damaged_newest_checkpoint_is_named_and_ignored(tmp_path, caplog, reason):
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    save(checkpoints, 2)
    dict(broken_copies(tmp_path / "2"))[reason]()
    with caplog.at_level(logging.WARNING, "train.checkpoints"):
        assert_holds(checkpoints, 1)
    assert "ignored checkpoint 2" in caplog.text
    assert reason in caplog.text
    assert save(checkpoints, 2)
    assert_holds(checkpoints, 2)


class FailingCalls:
    """Counts the system calls of `checkpoint_folder` and lets one of them fail as on a full disk."""

    def __init__(self, monkeypatch):
        self.count, self.fail_at = 0, 0
        for name in ("replace", "rename", "fsync", "open"):
            monkeypatch.setattr(f"train.checkpoint_folder.os.{name}", self._counted(getattr(os, name)))
        monkeypatch.setattr(checkpoint_folder, "open", self._counted(builtins.open), raising=False)

    def _counted(self, call):
        def counted(*args, **kwargs):
            self.count += 1
            if self.count == self.fail_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*args, **kwargs)

        return counted


def test_a_failure_at_any_system_call_loses_nothing(tmp_path, monkeypatch):
    """Renames included, and those of deleting old checkpoints: `keep` is 1."""
    checkpoints = Checkpoints(tmp_path / "run", keep=1)
    save(checkpoints, 1)
    shutil.copytree(tmp_path / "run", tmp_path / "start")
    with monkeypatch.context() as patch:
        calls = FailingCalls(patch)
        save(checkpoints, 2)
        num_calls = calls.count
    assert num_calls > 10
    outcomes = set()
    for fail_at in np.random.default_rng(0).permutation(num_calls)[:15] + 1:
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(tmp_path / "start", tmp_path / "run")
        with monkeypatch.context() as patch:
            calls = FailingCalls(patch)
            calls.fail_at = int(fail_at)
            with pytest.raises(OSError, match="No space left"):
                save(checkpoints, 2)
        newest = checkpoints.steps()[-1]
        assert_holds(checkpoints, newest)
        outcomes.add(newest)
    save(checkpoints, 3)
    assert names(checkpoints) == {"3"}  # leftovers are gone
    assert 1 in outcomes


def test_a_disk_that_fills_up_while_arrays_are_written_loses_nothing(tmp_path):
    """The limit on a file's size lets the writer fail at byte offsets inside orbax's own files."""
    size = 30_000
    checkpoints = Checkpoints(tmp_path, keep=1)
    like = state_of(0, size)
    save(checkpoints, 1, state_of(1, size))
    largest = max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert largest > 3 * size
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in np.random.default_rng(0).integers(largest // 20, largest, 5):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), old[1]))
        try:
            with pytest.raises(Exception, match=r"(?i)file too large|EFBIG"):
                save(checkpoints, 2, state_of(2, size))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert names(checkpoints) == {"1"}
        assert_holds(checkpoints, 1, like, size)
    assert save(checkpoints, 2, state_of(2, size))
    assert_holds(checkpoints, 2, like, size)
