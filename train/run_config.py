"""How a run is made, and which of its settings a resumed run must share with its checkpoints."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train.optimizer import OptimizerConfig


class RunError(RuntimeError):
    """A run that cannot go on, for a reason that its user can do something about."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of `loop.run`.

    Attributes:
        folder: of the run; a run resumes from the checkpoints it finds there.
        num_steps: of the whole run, skipped steps included.
        global_batch: rows a step, over all devices.
        seed: of parameters, data order and training noise.
        eval_every: steps between evaluations; there is one at the end in any case.
        save_every: steps between checkpoints; every evaluated step has one too.
        log_every: steps between logged ones. Their numbers are read `log_every` steps late, so nothing waits.
        keep: newest checkpoints that stay, beside the best one by tau.
        max_skipped_in_a_row: so many skipped steps without a good one end the run with an error.
        logger: "tensorboard" beside the JSON lines, or "none".
        max_seconds: wall clock from the call of `run`; once it is over, the run saves, evaluates and returns, so leave
            time for an evaluation.
        num_checked_batches: batches whose masks are looked at before step 1.
    """

    folder: Path
    num_steps: int
    global_batch: int
    seed: int
    eval_every: int
    save_every: int
    log_every: int = 10
    keep: int = 3
    max_skipped_in_a_row: int = 20
    logger: Any = "none"
    max_seconds: float | None = None
    num_checked_batches: int = 8

    def __post_init__(self):
        counts = (
            "num_steps",
            "global_batch",
            "eval_every",
            "save_every",
            "log_every",
            "keep",
            "max_skipped_in_a_row",
            "num_checked_batches",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in [0, 2**31), got {self.seed}")
        if self.logger not in ("none", "tensorboard"):
            raise ValueError(f"logger must be 'none' or 'tensorboard', got {self.logger!r}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds must be positive or None, got {self.max_seconds}")


def identity(
    task_name: str, num_records: int, optimizer: OptimizerConfig, config: RunConfig, facts: dict[str, Any]
) -> dict[str, Any]:
    """What makes a run this run, flat and as JSON: another value would train something else."""
    values = {
        "task": task_name,
        "num_records": num_records,
        "seed": config.seed,
        "global_batch": config.global_batch,
        **{f"optimizer.{name}": value for name, value in asdict(optimizer).items()},
        **{f"facts.{name}": value for name, value in facts.items()},
    }
    return json.loads(json.dumps(values))


def check_same_run(folder: Path, stored: dict[str, Any], now: dict[str, Any]) -> None:
    """`ValueError` naming the fields in which the checkpoints of a folder come from another run."""
    changed = [
        f"{name} was {stored.get(name, 'absent')!r}, is {now.get(name, 'absent')!r}"
        for name in sorted(stored.keys() | now.keys())
        if (name in stored) != (name in now) or stored[name] != now[name]
    ]
    if changed:
        raise ValueError(f"{folder} holds checkpoints of another run: {'; '.join(changed)}. Take a new folder.")
