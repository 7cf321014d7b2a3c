"""Taking turns on a device among processes that compile side by side.

Compiling a program of many kernels takes a CPU core a minute, timing it takes the device a second. Processes of one
benchmark therefore hold a file lock while they work on a device and give it up while they compile.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from jetspec_jax.decoding.executables import Executables


class Turn:
    """A lock that its holder may give up for a while.

    Args:
        path: of the lock's file, the same for all who take turns; None: nobody else works on the device.
    """

    def __init__(self, path: Path | None):
        self._file: TextIO | None = None if path is None else path.open("w")

    def take(self) -> None:
        """Waits until no other process holds it."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def give_up(self) -> None:
        """Lets others work."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Others may work inside."""
        self.give_up()
        try:
            yield
        finally:
            self.take()

    def pause_compilation(self) -> None:
        """From now on every program of this process is compiled while others may work."""
        jit = Executables.jit

        def paused_jit(executables: Executables, program: Callable, **options: Any) -> _Program:
            return _Program(jit(executables, program, **options), self)

        Executables.jit = paused_jit


class _Program:
    """A jitted function for one set of shapes, compiled before its first call."""

    def __init__(self, jitted: Any, turn: Turn):
        self._jitted, self._turn, self._compiled = jitted, turn, None

    def lower(self, *args: Any) -> "_Lowered":
        """As `jax.jit(...).lower`."""
        with self._turn.paused():
            return _Lowered(self._jitted.lower(*args), self._turn)

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            self._compiled = self.lower(*args).compile()
        return self._compiled(*args)


class _Lowered:
    def __init__(self, lowered: Any, turn: Turn):
        self._lowered, self._turn = lowered, turn

    def compile(self) -> Any:
        """As `jax.stages.Lowered.compile`."""
        with self._turn.paused():
            return self._lowered.compile()
