"""Checkpoints of a run, `RUN/checkpoints/STEP`: arrays by orbax, loader position, config and metrics as JSON.

Every process calls every method; the folder is on a disk that all of them see. Process 0 alone renames and deletes.
"""

import logging
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint.experimental.v1 as ocp

from train import checkpoint_folder
from train.devices import barrier, from_primary, is_primary
from train.step import TrainState

ARRAYS = "arrays"
METRICS = "metrics.json"
FACTS = "facts.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """A checkpoint read back.

    Attributes:
        state: placed like the state given to `restore`.
        loader: position of the loader.
        config: as it was saved.
        metrics: of the evaluation at this step, None if there was none.
    """

    step: int
    state: TrainState
    loader: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, float] | None


class Checkpoints:
    """The checkpoints of one run: the newest `keep` stay, and the best by "tau".

    Args:
        folder: `RUN/checkpoints`; made if needed.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int):
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.folder = Path(folder).absolute()
        self._keep = keep
        self.folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        return sorted(int(path.name) for path in self._folders() if checkpoint_folder.what_is_missing(path) is None)

    def incomplete(self) -> dict[str, str]:
        """Names of the folders that no run resumes from, and why not."""
        reasons = {path.name: checkpoint_folder.what_is_missing(path) for path in self._folders()}
        return {name: reason for name, reason in sorted(reasons.items()) if reason is not None}

    def metrics(self, step: int) -> dict[str, float] | None:
        """What `set_metrics` wrote."""
        path = self._path(step) / METRICS
        return checkpoint_folder.read_json(path) if path.exists() else None

    def best_step(self) -> int | None:
        """The evaluated step with the largest tau, the earliest of equals; None before the first evaluation."""
        evaluated = [(step, self.metrics(step)) for step in self.steps()]
        taus = {step: metrics["tau"] for step, metrics in evaluated if metrics is not None}
        return max(taus, key=lambda step: (taus[step], -step), default=None)

    def save(self, step: int, state: TrainState, *, loader: dict[str, Any], config: dict[str, Any]) -> bool:
        """Writes a checkpoint and deletes those no longer wanted. A complete one of the same step stays: False.

        Whatever goes wrong on the way (disk full, killed), older checkpoints are untouched and nothing lies under the
        new name.
        """
        if from_primary(step in self.steps()):
            return False
        path = self._path(step)
        draft = path.with_name(path.name + checkpoint_folder.INCOMPLETE)
        try:
            if is_primary():
                self._make_room(step)
                checkpoint_folder.begin(path)
            barrier(f"begin checkpoint {step}")
            _write_arrays(draft / ARRAYS, state)
            if is_primary():
                checkpoint_folder.write_json(
                    draft / FACTS, {"loader": loader, "config": config, "arrays": _table(state)}
                )
                checkpoint_folder.commit(draft, path)
        except BaseException:
            if is_primary():
                shutil.rmtree(draft, ignore_errors=True)  # the disk may be full; what stays is recognised by its name
            raise
        barrier(f"end checkpoint {step}")
        self.prune()
        return True

    def set_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Adds the evaluation's result to the checkpoint of a step; "tau" decides which one is best."""
        if not math.isfinite(metrics["tau"]):
            raise ValueError(f"tau at step {step} is {metrics['tau']}")
        if is_primary():
            checkpoint_folder.write_json(self._path(step) / METRICS, metrics)
        barrier(f"metrics {step}")
        self.prune()

    def restore(self, like: TrainState) -> Restored | None:
        """The newest complete checkpoint, None if there is none; says which folders were ignored.

        Args:
            like: shapes, dtypes and shardings; `ValueError` naming the arrays if others were saved.
        """
        for name, reason in self.incomplete().items():
            logger.warning("ignored checkpoint %s: %s", name, reason)
        step = int(from_primary(max(self.steps(), default=-1)))
        if step < 0:
            return None
        facts = checkpoint_folder.read_json(self._path(step) / FACTS)
        _check_table(self._path(step), facts["arrays"], _table(like))
        state = _read_arrays(self._path(step) / ARRAYS, like)
        return Restored(step, state, facts["loader"], facts["config"], self.metrics(step))

    def config(self) -> dict[str, Any] | None:
        """The config saved with the newest complete checkpoint, None if there is none."""
        steps = self.steps()
        return checkpoint_folder.read_json(self._path(steps[-1]) / FACTS)["config"] if steps else None

    def load_params(self, step: int, like: Any) -> Any:
        """The parameters alone; `like` has their shapes, dtypes and shardings."""
        named = {"params": _by_name(_abstract(like))}
        return _like(ocp.load_checkpointables(self._path(step) / ARRAYS, named)["params"], like)

    def prune(self) -> None:
        """Deletes all but the newest `keep` and the best."""
        if is_primary():
            steps = self.steps()
            for step in set(steps) - set(steps[-self._keep :]) - {self.best_step()}:
                checkpoint_folder.remove(self._path(step))
        barrier("prune checkpoints")

    def _path(self, step: int) -> Path:
        return self.folder / str(step)

    def _folders(self) -> list[Path]:
        names = [path for path in self.folder.iterdir() if path.is_dir()]
        return [path for path in names if path.name.removesuffix(checkpoint_folder.INCOMPLETE).isdecimal()]

    def _make_room(self, step: int) -> None:
        """Deletes what cut-short writers left, and a damaged checkpoint of this step; other damaged ones stay."""
        for name, reason in self.incomplete().items():
            if name.endswith(checkpoint_folder.INCOMPLETE) or name == str(step):
                logger.warning("removed checkpoint %s: %s", name, reason)
                shutil.rmtree(self.folder / name)


def _parts(state: TrainState) -> dict[str, Any]:
    """Two parts, so that parameters can be read alone."""
    return {"params": state.params, "rest": replace(state, params=())}


def _write_arrays(path: Path, state: TrainState) -> None:
    ocp.save_checkpointables(path, {part: _by_name(tree) for part, tree in _parts(state).items()})


def _read_arrays(path: Path, like: TrainState) -> TrainState:
    parts = _parts(like)
    loaded = ocp.load_checkpointables(path, {part: _by_name(_abstract(tree)) for part, tree in parts.items()})
    read = {part: _like(loaded[part], tree) for part, tree in parts.items()}
    return replace(read["rest"], params=read["params"])


def _table(tree: Any) -> dict[str, str]:
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in _by_name(tree).items()}


def _check_table(path: Path, saved: dict[str, str], wanted: dict[str, str]) -> None:
    names = sorted(name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name))
    if names:
        differences = [f"{name}: saved {saved.get(name)}, wanted {wanted.get(name)}" for name in names]
        raise ValueError(f"{path} has other arrays than this model and optimizer: {'; '.join(differences)}")


def _by_name(tree: Any) -> dict[str, Any]:
    """Leaves by path: `{".opt_state[1][0].mu['w']": array}`. Saved so, nothing depends on optax's classes."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _like(named: dict[str, Any], tree: Any) -> Any:
    return jax.tree.unflatten(jax.tree.structure(tree), [named[name] for name in _by_name(tree)])


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)
