"""Taking turns on a device among processes that compile side by side.

Compiling a program of many kernels takes a CPU core a minute, timing it takes the device a second. Processes of one
benchmark therefore hold a file lock while they work on a device and give it up while they compile. Imports nothing of
JAX by itself: processes of other frameworks take turns too.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TextIO


class Turn:
    """A lock that its holder may give up for a while. Not counted: who takes it twice has it once.

    Args:
        path: of the lock's file, the same for all who take turns; None: nobody else works on the device.

    Attributes:
        is_held: whether this process has it.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._file: TextIO | None = None
        self.is_held = False

    def take(self) -> None:
        """Waits until no other process holds it."""
        if self._path is not None and not self.is_held:
            self._file = self._path.open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self.is_held = True

    def give_up(self) -> None:
        """Lets others work."""
        if self._file is not None:
            self._file.close()
        self._file, self.is_held = None, False

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        self.give_up()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Others may work inside; who did not hold it does not hold it afterwards either."""
        was_held = self.is_held
        self.give_up()
        try:
            yield
        finally:
            if was_held:
                self.take()

    def pause_compilation(self) -> None:
        """From now on every program of this process is compiled while others may work."""
        if self._path is None:
            return
        from jetspec_jax.decoding.executables import Executables

        jit = Executables.jit

        def paused_jit(executables: Executables, program: Callable, **options: Any) -> _Program:
            return _Program(jit(executables, program, **options), self)

        Executables.jit = paused_jit


class _Program:
    """A jitted function that is traced and lowered while others work."""

    def __init__(self, jitted: Any, turn: Turn):
        self._jitted, self._turn = jitted, turn

    def lower(self, *args: Any) -> "_Lowered":
        """As `jax.jit(...).lower`; what has been queued comes to its end first, as others may be timed from now on."""
        import jax

        jax.block_until_ready(jax.live_arrays())
        with self._turn.paused():
            return _Lowered(self._jitted.lower(*args), self._turn)


class _Lowered:
    def __init__(self, lowered: Any, turn: Turn):
        self._lowered, self._turn = lowered, turn

    def compile(self) -> Any:
        """As `jax.stages.Lowered.compile`."""
        with self._turn.paused():
            return self._lowered.compile()
