"""Progress on stderr for what takes long: loading, compiling, long generations."""

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """Bars that appear only when wanted; inside `with`.

    Args:
        show: None shows them if stderr is a terminal.
    """

    def __init__(self, show: bool | None = None):
        self.is_shown = sys.stderr.isatty() if show is None else show
        self._console = Console(stderr=True)
        self._bars: Bars | None = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error) -> None:
        self._stop()

    def bytes(self, label: str) -> Callable[[int, int], None]:
        """A callback `(done, total)` in bytes."""
        return self._callback(label, DownloadColumn())

    def tokens(self, label: str) -> Callable[[int, int], None]:
        """A callback `(done, total)` in tokens."""
        return self._callback(label, TextColumn("{task.completed:.0f}/{task.total:.0f} tokens"))

    def note(self, message: str) -> None:
        """One dim line."""
        if self.is_shown:
            self._console.print(message, style="dim")

    def _callback(self, label: str, amount) -> Callable[[int, int], None]:
        if not self.is_shown:
            return lambda done, total: None
        self._stop()
        columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
        self._bars = Bars(*columns, console=self._console, transient=True)
        self._bars.start()
        task = self._bars.add_task(label)
        return lambda done, total: self._bars.update(task, completed=done, total=total)

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
