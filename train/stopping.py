"""Reasons to end a run early but cleanly: SIGTERM or SIGINT, or the wall-clock budget is used up."""

import signal
import threading
import time

import jax
import numpy as np

from train.devices import from_all

SIGNALS = (signal.SIGTERM, signal.SIGINT)
NONE, SIGNAL, TIME = 0, 1, 2
NAMES = {SIGNAL: "signal", TIME: "time"}


class Stopping:
    """Inside `with`, the first signal only asks; the second acts as ever.

    Args:
        deadline: of `time.monotonic`, None has no limit.
        agree_every: several processes must stop at the same step and ask each other every so many steps.
    """

    def __init__(self, deadline: float | None, agree_every: int):
        self._deadline = deadline
        self._agree_every = agree_every
        self._is_asked = False
        self._old: dict[int, object] = {}

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python refuses handlers
            self._old = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, *error) -> None:
        self._restore()

    def reason(self, step: int) -> str | None:
        """Why to stop before the next step: "signal", "time" or None; the same on every process."""
        code = SIGNAL if self._is_asked else TIME if self._is_late() else NONE
        if jax.process_count() > 1:
            if step % self._agree_every:
                return None
            codes = from_all(np.array([code], np.int32))
            code = SIGNAL if SIGNAL in codes else int(codes.max())
        return NAMES.get(code)

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _ask(self, number: int, frame: object) -> None:
        self._is_asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}
