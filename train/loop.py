"""The training loop: steps queued without waiting, logs read late, checkpoints, evaluations, exact resume.

What a step computes is `step.py`; what is trained is a `Task`. A run stopped at any moment and started again gives the
parameters, batches and logs of one that was never stopped (bitwise on CPU in fp32).
"""

import time
from collections import deque
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np

from train.checkpoints import Checkpoints, Restored
from train.devices import data_mesh, from_all, from_primary, is_primary, local_copy, put_batch, replicate, replicated
from train.loader import Loader, Source
from train.metrics import MetricsLog
from train.optimizer import OptimizerConfig, learning_rate, make_optimizer
from train.progress import TrainingProgress
from train.run_config import RunConfig, RunError, check_same_run, identity
from train.step import init_state, make_train_step
from train.stopping import Stopping
from train.supervision import check_supervision
from train.task import Params, Task


class TooManySkippedSteps(RunError):
    """So many steps in a row had no finite update or nothing to supervise that training makes no sense."""


@dataclass(frozen=True)
class RunResult:
    """What a run leaves.

    Attributes:
        params: after the last step, on one device.
        best_params: of the checkpoint with the largest tau, None without any evaluation.
        best_step: its step.
        best_metrics: of the evaluation there; empty without any.
        metrics: of the last logged step this process saw, and of the last evaluation as "evaluation/NAME".
        step: steps made.
        stopped_by: "signal" or "time"; None if all steps were made.
    """

    params: Params
    best_params: Params | None
    best_step: int | None
    best_metrics: dict[str, float]
    metrics: dict[str, float]
    step: int
    stopped_by: str | None


def run(
    task: Task,
    source: Source,
    optimizer_config: OptimizerConfig,
    run_config: RunConfig,
    *,
    init_params: Params | None = None,
    facts: dict[str, Any] | None = None,
) -> RunResult:
    """Trains a task, or goes on from the newest complete checkpoint in `run_config.folder`.

    Args:
        source: rows, see `loader.Source`.
        init_params: instead of `task.init_params(seed)`; a resumed run takes only the shapes.
        facts: whatever else must be the same when the run is resumed (settings of the task and the data), JSON types.

    Raises:
        ValueError: the checkpoints come from another run, batches do not fit the devices, or too many of the first
            rows have nothing to supervise.
        TooManySkippedSteps: see `RunConfig.max_skipped_in_a_row`; the batches are in `skipped_steps.jsonl`.
    """
    same = identity(task.name, len(source), optimizer_config, run_config, {} if facts is None else facts)
    trainer = _Trainer(task, source, optimizer_config, run_config, init_params, same)
    try:
        return trainer.run()
    finally:
        trainer.close()


class _Trainer:
    def __init__(
        self,
        task: Task,
        source: Source,
        optimizer_config: OptimizerConfig,
        config: RunConfig,
        init_params: Params | None,
        same: dict[str, Any],
    ):
        self.start = time.monotonic()
        self.task, self.config = task, config
        self.mesh = data_mesh()
        if config.global_batch % self.mesh.size:
            raise ValueError(f"global_batch {config.global_batch} cannot be split over {self.mesh.size} devices")
        self.checkpoints = Checkpoints(Path(config.folder) / "checkpoints", config.keep)
        self.stored_config = {"identity": same, "run": {**asdict(config), "folder": Path(config.folder).name}}
        if (stored := self.checkpoints.config()) is not None:
            check_same_run(config.folder, stored["identity"], same)
        restored = self._init_state(optimizer_config, init_params)
        self._init_data(source, restored)
        self.is_evaluated = restored is not None and restored.metrics is not None
        self.log = self._open_log() if is_primary() else None
        self.pending: deque[tuple[int, np.ndarray, dict[str, Any]]] = deque()
        self.metrics = _named_evaluation(restored.metrics) if self.is_evaluated else {}

    def _init_state(self, optimizer_config: OptimizerConfig, init_params: Params | None) -> Restored | None:
        sharding = replicated(self.mesh)
        optimizer = make_optimizer(optimizer_config)
        self.train_step = make_train_step(
            self.task.loss, optimizer, lambda step: learning_rate(optimizer_config, step), sharding=sharding
        )
        params = self.task.init_params(self.config.seed) if init_params is None else init_params
        params = replicate(params, self.mesh, may_alias=False)
        self.state = jax.jit(lambda p: init_state(p, optimizer), out_shardings=sharding)(params)
        self.frozen = replicate(self.task.frozen, self.mesh, may_alias=True)
        restored = self.checkpoints.restore(self.state)
        if restored is not None:
            self.state = restored.state
        self.step = 0 if restored is None else restored.step
        return restored

    def _init_data(self, source: Source, restored: Restored | None) -> None:
        config = self.config
        if restored is None:
            # All rows of the batches, on every process: the same verdict everywhere.
            with closing(Loader(source, config.global_batch, config.seed)) as first:
                check_supervision(islice(first, min(config.num_checked_batches, first.batches_per_epoch)))
        self.loader = Loader(
            source,
            config.global_batch,
            config.seed,
            process_index=jax.process_index(),
            num_processes=jax.process_count(),
        )
        if restored is not None:
            self.loader.set_state(restored.loader)

    def _open_log(self) -> MetricsLog:
        # Without a result in the checkpoint, the evaluation at its step is made again.
        last_evaluation = self.step if self.is_evaluated else self.step - 1
        folder = Path(self.config.folder)
        return MetricsLog(folder, self.config.logger, last_step=self.step, last_evaluation=last_evaluation)

    def run(self) -> RunResult:
        config = self.config
        stopped_by = None
        show_bar = None if is_primary() else False
        deadline = None if config.max_seconds is None else self.start + config.max_seconds
        with (
            Stopping(deadline, config.log_every) as stopping,
            TrainingProgress(config.num_steps, self.step, show_bar=show_bar) as self.progress,
        ):
            if self.step and self._is_evaluation_due() and not self.is_evaluated:
                self._evaluate()  # the last run was killed while measuring
            while self.step < config.num_steps:
                stopped_by = stopping.reason(self.step)
                if stopped_by is not None:
                    break
                self._queue_step()
                if self._is_evaluation_due():
                    self._evaluate()
                elif self.step % config.save_every == 0:
                    self._save()
            if stopped_by == "time" and not self.is_evaluated:
                self._evaluate()
            elif stopped_by is not None:
                self._save()
        return self._result(stopped_by)

    def _queue_step(self) -> None:
        """Makes a step without waiting for it, and reads what is `log_every` steps old."""
        batch = next(self.loader)
        self.state, metrics = self.train_step(self.state, self.frozen, put_batch(batch, self.mesh), self.config.seed)
        self.step += 1
        self.is_evaluated = False
        self.pending.append((self.step, batch.ids, metrics))
        if self.step % self.config.log_every == 0:
            self._read_metrics(self.step - self.config.log_every)

    def _is_evaluation_due(self) -> bool:
        return self.step % self.config.eval_every == 0 or self.step == self.config.num_steps

    def _read_metrics(self, last_step: int) -> None:
        """Logs pending steps up to `last_step`; waits for those on the device."""
        ready = []
        while self.pending and self.pending[0][0] <= last_step:
            ready.append(self.pending.popleft())
        values = jax.device_get([metrics for _, _, metrics in ready])
        for (step, ids, _), arrays in zip(ready, values, strict=True):
            self._log_step(step, ids, {name: value.item() for name, value in arrays.items()})

    def _log_step(self, step: int, ids: np.ndarray, values: dict[str, Any]) -> None:
        if values["is_skipped"]:
            all_ids = from_all(ids).tolist()
            if self.log is not None:
                self.log.skipped(step, all_ids, values)
        if step % self.config.log_every == 0:
            self.metrics = {**self.metrics, **values}
            if self.log is not None:
                self.log.training(step, {**values, "seconds": round(time.monotonic() - self.start, 3)})
                self.progress.update(step, values["loss"])
        if values["skipped_in_a_row"] >= self.config.max_skipped_in_a_row:
            raise TooManySkippedSteps(
                f"steps {step - values['skipped_in_a_row'] + 1} to {step} were all skipped (last: loss "
                f"{values['loss']}, gradient norm {values['grad_norm']}, weight {values['weight']}); the record ids of "
                f"their batches are in {Path(self.config.folder) / 'skipped_steps.jsonl'}"
            )

    def _save(self) -> None:
        self._read_metrics(self.step)
        if self.log is not None:
            self.log.sync()
        self.checkpoints.save(self.step, self.state, loader=self.loader.get_state(), config=self.stored_config)

    def _evaluate(self) -> None:
        """Saves first: nothing is lost if measuring fails."""
        self._save()
        values = from_primary(self.task.evaluate(local_copy(self.state.params), self.step))
        values = {name: float(value) for name, value in values.items()}
        if "tau" not in values:
            raise ValueError(f"evaluate must measure 'tau', got {sorted(values)}")
        if self.log is not None:
            self.log.evaluation(self.step, values)
            self.log.sync()
            self.progress.evaluation(self.step, values["tau"])
        self.checkpoints.set_metrics(self.step, values)
        self.metrics = {**self.metrics, **_named_evaluation(values)}
        self.is_evaluated = True

    def _result(self, stopped_by: str | None) -> RunResult:
        best_step = self.checkpoints.best_step()
        best, best_metrics = None, {}
        if best_step is not None:
            best_metrics = self.checkpoints.metrics(best_step) or {}
            best = local_copy(self.checkpoints.load_params(best_step, self.state.params))
        return RunResult(
            local_copy(self.state.params), best, best_step, best_metrics, self.metrics, self.step, stopped_by
        )

    def close(self) -> None:
        self.loader.close()
        if self.log is not None:
            self.log.close()


def _named_evaluation(values: dict[str, float]) -> dict[str, float]:
    return {f"evaluation/{name}": value for name, value in values.items()}
