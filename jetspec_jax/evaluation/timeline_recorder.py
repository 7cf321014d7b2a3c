"""Records a timeline: what is dispatched, and when threads that wait for it see it end.

Programs whose outputs are all overwritten by later ones (they fill caches after the prompt) are left out. On a CPU that
is busy with the programs themselves the threads wake up late, by milliseconds; beside accelerators they do not.
"""

import queue
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import jax

from jetspec_jax.decoding.foresight_programs import Ahead
from jetspec_jax.decoding.outcome_cache import OutcomeCache
from jetspec_jax.decoding.state import DraftReport, RoundOutput
from jetspec_jax.evaluation.timeline import Event, Timeline
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams

# The latest call of each of these hands something to the program. What else it needs ended before they did: foresee t
# takes the verdict of verify t - 1, but select t - 1 waited for that.
_NEEDS = {
    "first block": ("prefill",),
    "verify": ("first block", "select"),
    "foresee": ("first block", "select"),
    "select": ("verify", "foresee"),
}
# Programs of a round; the others come before the first.
_OF_ROUND = ("verify", "foresee", "select", "round", "plain round")


class TimelineRecorder:
    """Watches the programs of one run; to be set as `programs.executables.on_dispatch`, where it never waits.

    Use `record_timeline` unless a loop of your own is to be watched. Rounds are counted from the recorder's start.
    """

    def __init__(self):
        self._calls: list[_Call] = []
        self._latest: dict[str, int] = {}
        self._rounds: dict[str, int] = {}
        self._watchers: dict[jax.Device, _Watcher] = {}

    def __call__(self, name: str, device: jax.Device, outputs: Any) -> None:
        """Notes a call that has just been dispatched."""
        dispatched = time.perf_counter()
        probe = _lasting_array(outputs)
        if probe is None:
            return
        if name in _OF_ROUND:
            self._rounds[name] = self._rounds.get(name, 0) + 1
        needs = tuple(self._latest[other] for other in _NEEDS.get(name, ()) if other in self._latest)
        call = _Call(name, device, self._rounds.get(name, 0), dispatched, needs)
        self._latest[name] = len(self._calls)
        self._calls.append(call)
        if device not in self._watchers:
            self._watchers[device] = _Watcher()
        self._watchers[device].watch(call, probe)

    def timeline(self) -> Timeline:
        """Waits for everything noted so far and ends the watching.

        Raises:
            RuntimeError: a program failed.
        """
        self.close()
        if failed := [call for call in self._calls if call.error is not None]:
            raise RuntimeError(f"program {failed[0].name!r} of round {failed[0].round} failed") from failed[0].error
        return Timeline.of_events(
            [
                Event(call.name, f"{call.device.device_kind} {call.device.id}", call.round, call.dispatched, call.ended,
                      call.needs)
                for call in self._calls
            ]
        )  # fmt: skip

    def close(self) -> None:
        """Ends the watching threads, after what they still have to wait for."""
        for watcher in self._watchers.values():
            watcher.close()
        self._watchers.clear()


def record_timeline(model: LanguageModel, prompt: Any, params: SamplingParams) -> Timeline:
    """Generates one text, whose programs should be compiled already, and records it."""
    recorder = TimelineRecorder()
    executables = model.programs.executables
    before, executables.on_dispatch = executables.on_dispatch, recorder
    # A thread that has seen a program end must not wait for its turn at the interpreter, 5 ms by default.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        model.generate(prompt, params)
    finally:
        executables.on_dispatch = before
        recorder.close()
        sys.setswitchinterval(interval)
    return recorder.timeline()


@dataclass
class _Call:
    name: str
    device: jax.Device
    round: int
    dispatched: float
    needs: tuple[int, ...]
    ended: float = float("nan")
    error: Exception | None = None


class _Watcher:
    """Waits for the programs of one device, in order."""

    def __init__(self):
        self._queue: queue.SimpleQueue[tuple[_Call, jax.Array] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self._thread.start()

    def watch(self, call: _Call, probe: jax.Array) -> None:
        self._queue.put((call, probe))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            call, probe = item
            try:
                probe.block_until_ready()
            except Exception as error:  # told by `timeline`; the run itself raises it too
                call.error = error
            call.ended = time.perf_counter()


def _lasting_array(outputs: Any) -> jax.Array | None:
    """A small output that no later call is given to overwrite; None if the program has none.

    States, caches and chosen blocks are donated to the next round. What the host reads is not, nor are prepared blocks
    where results are not recycled (`decoding/executables.py`; where they are, the recorder is told of copies).
    """
    for part in outputs if isinstance(outputs, tuple) else ():
        match part:
            case RoundOutput():
                return part.num_committed
            case (RoundOutput(), _):
                return part[0].num_committed
            case OutcomeCache():
                return part.outcomes.anchor
            case DraftReport():
                return part.is_hit
    match outputs:
        case (Ahead(), jax.Array() as mass, *_):
            return mass
    return None
