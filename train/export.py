"""From checkpoints to modules and back: what an export is made of, and what a training may start from."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jetspec_jax.checkpoints.drafter_files import load_drafter
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import Leaves, split
from jetspec_jax.models.target import Target
from train.adapter_task import AdapterTask
from train.checkpoints import Checkpoints
from train.draft_task import DraftTask
from train.loop import RunResult
from train.sequence import cast


def load_modules(folder: Path, target: Target) -> tuple[Draft, Adapter | None]:
    """Draft and adapter of a drafter folder, in the target's dtype."""
    drafter = load_drafter(folder, target.config, dtype=target.dtype)
    return drafter.draft, drafter.adapter


def master_weights(module: nnx.Module | None, folder: Path) -> Leaves:
    """A module's weights as training starts from them.

    Raises:
        ValueError: no module: the folder has no adapter.
    """
    if module is None:
        raise ValueError(f"{folder} has no adapter to start from")
    return cast(split(module)[1], jnp.float32)


def best_checkpoint(task: DraftTask | AdapterTask, folder: Path) -> tuple[Draft | Adapter, dict[str, Any]]:
    """The module of a stage's best checkpoint (the newest where none was measured), and its step and metrics.

    Args:
        task: of the stage.
        folder: of the stage, `RUN/draft` or `RUN/adapter`.

    Raises:
        ValueError: no complete checkpoint.
    """
    checkpoints = Checkpoints(folder / "checkpoints", keep=1_000)  # more than there are: nothing is deleted
    if not checkpoints.steps():
        raise ValueError(f"{checkpoints.folder} holds no complete checkpoint")
    best = checkpoints.best_step()
    step = checkpoints.steps()[-1] if best is None else best
    params = checkpoints.load_params(step, task.init_params(0))
    return task.module(params), {"step": step} | (checkpoints.metrics(step) or {})


def has_checkpoint(folder: Path) -> bool:
    """Whether a stage's folder holds a complete checkpoint."""
    return (folder / "checkpoints").is_dir() and bool(Checkpoints(folder / "checkpoints", keep=1_000).steps())


def best_params(result: RunResult) -> Any:
    """Of the best checkpoint of a run, of the last step where none was measured."""
    return result.params if result.best_params is None else result.best_params


def result_facts(result: RunResult) -> dict[str, Any]:
    """What an export records of a run: the step its weights are from, and what was measured there."""
    if result.best_step is None:
        return {"step": result.step}
    return {"step": result.best_step, **result.best_metrics}
