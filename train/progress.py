"""How far training is: a bar on a terminal, plain lines elsewhere."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class TrainingProgress:
    """Steps, time left, loss and tau on stderr; inside `with`.

    Args:
        num_steps: of the whole run.
        first_step: where this run starts (resumed runs start late).
        show_bar: None shows a bar if stderr is a terminal.
    """

    def __init__(self, num_steps: int, first_step: int = 0, *, show_bar: bool | None = None):
        self._num_steps = num_steps
        self._first_step = first_step
        self._start = time.monotonic()
        self._tau: float | None = None
        self._bars: Bars | None = None
        self._task = None
        if sys.stderr.isatty() if show_bar is None else show_bar:
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._bars = Bars(*columns, console=Console(stderr=True))
            self._task = self._bars.add_task("", total=num_steps, completed=first_step)

    def __enter__(self) -> "TrainingProgress":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, step: int, loss: float) -> None:
        """After a logged step."""
        numbers = f"loss {loss:.4f}" + ("" if self._tau is None else f"  tau {self._tau:.3f}")
        if self._bars is not None:
            self._bars.update(self._task, completed=step, description=numbers)
        else:
            left = time.strftime("%H:%M:%S", time.gmtime(self.seconds_left(step)))
            print(f"step {step}/{self._num_steps}  {numbers}  left {left}", file=sys.stderr, flush=True)

    def evaluation(self, step: int, tau: float) -> None:
        """After an evaluation."""
        self._tau = tau
        self.note(f"step {step}/{self._num_steps}  tau {tau:.3f}")

    def note(self, message: str) -> None:
        """One line."""
        if self._bars is not None:
            self._bars.console.print(message, markup=False, highlight=False)
        else:
            print(message, file=sys.stderr, flush=True)

    def seconds_left(self, step: int) -> float:
        """At the pace of this run so far."""
        pace = (time.monotonic() - self._start) / max(step - self._first_step, 1)
        return pace * (self._num_steps - step)
