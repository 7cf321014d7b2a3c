"""Numbers of a run on disk: JSON lines, and TensorBoard if wanted. A resumed run never repeats a step."""

import json
import math
import os
from pathlib import Path
from typing import Any, Literal

LoggerName = Literal["none", "tensorboard"]


class JsonLines:
    """One JSON object a line, each with "step"; every line reaches the system when written, the disk at `sync`.

    Args:
        path: opened for appending.
        last_step: lines of later steps, and one cut in the middle, are dropped first.
    """

    def __init__(self, path: Path, last_step: int):
        _drop_later_lines(path, last_step)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Appends a line; NaN and infinities become null."""
        record = {"step": step, **{name: _as_json(value) for name, value in values.items()}}
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Forces what was written to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class MetricsLog:
    """`metrics.jsonl` (training), `evaluations.jsonl` and `skipped_steps.jsonl` of a run folder.

    Args:
        folder: of the run.
        logger: "tensorboard" also writes event files to `folder/tensorboard`.
        last_step: the step training resumes at; what is logged of later ones is dropped.
        last_evaluation: the last step whose evaluation is known.
    """

    def __init__(self, folder: Path, logger: LoggerName, *, last_step: int, last_evaluation: int):
        self._training = JsonLines(folder / "metrics.jsonl", last_step)
        self._evaluations = JsonLines(folder / "evaluations.jsonl", last_evaluation)
        self._skipped = JsonLines(folder / "skipped_steps.jsonl", last_step)
        self._board = None
        if logger == "tensorboard":
            from tensorboardX import SummaryWriter  # an extra

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=last_step + 1)

    def training(self, step: int, values: dict[str, Any]) -> None:
        """A logged step."""
        self._training.write(step, values)
        self._to_board("train", step, values)

    def evaluation(self, step: int, values: dict[str, float]) -> None:
        """An evaluation."""
        self._evaluations.write(step, values)
        self._to_board("evaluation", step, values)

    def skipped(self, step: int, ids: list[int], values: dict[str, Any]) -> None:
        """A step whose update was not applied, and the records of its batch."""
        self._skipped.write(step, {"ids": ids, **values})

    def sync(self) -> None:
        """Forces everything to the disk."""
        for lines in (self._training, self._evaluations, self._skipped):
            lines.sync()
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        """Closes all files."""
        for lines in (self._training, self._evaluations, self._skipped):
            lines.close()
        if self._board is not None:
            self._board.close()

    def _to_board(self, group: str, step: int, values: dict[str, Any]) -> None:
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{group}/{name}", value, step)


def _drop_later_lines(path: Path, last_step: int) -> None:
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    whole = text.splitlines(keepends=True)
    if whole and not whole[-1].endswith("\n"):
        whole.pop()  # the writer was killed in the middle of it
    kept = "".join(line for line in whole if json.loads(line)["step"] <= last_step)
    if kept != text:
        draft = path.with_name(path.name + ".incomplete")
        draft.write_text(kept, encoding="utf-8")
        os.replace(draft, path)


def _as_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
