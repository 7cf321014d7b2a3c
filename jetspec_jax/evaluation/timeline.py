"""When each program of a run was on its device: how much of the drafting hides behind the verification (handbook 9.2).

Programs are queued without waiting, so the host's clock says little about them. Here **ends are measured**: a thread
per device waits for an output of each program (`timeline_recorder.py`). **Starts are derived**: a program starts when
it has been dispatched, the one before it on the same device has ended, and so have those whose results it needs. A span
therefore contains the launch of its program and the hand-over of its inputs from the other device; an overlap is the
most that the measured ends allow. How much drafting costs a round is measured apart: `compare.Run.exposed_draft_ms`.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """One call of a program, as recorded.

    Attributes:
        name: the program's.
        device: where it ran.
        round: 1 is the first round of the text, 0 comes before it.
        dispatched, ended: seconds of one clock; dispatched is when the asynchronous call had returned.
        needs: indices of earlier events whose results it takes.
    """

    name: str
    device: str
    round: int
    dispatched: float
    ended: float
    needs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Span:
    """One program on its device; the end is measured, the start derived (see the module)."""

    name: str
    device: str
    round: int
    start_ms: float
    end_ms: float

    @property
    def duration_ms(self) -> float:
        """Launch and hand-over of inputs included."""
        return self.end_ms - self.start_ms

    @property
    def label(self) -> str:
        """What it works on: round t verifies block t, while block t + 1 is drafted and selected."""
        match self.name:
            case "verify":
                return f"verify block {self.round}"
            case "foresee" | "select":
                return f"{self.name} block {self.round + 1}"
            case "round" | "plain round":
                return f"{self.name} {self.round}"
        return self.name


@dataclass(frozen=True)
class Timeline:
    """The spans of a run in the order of their dispatch; those of one device do not overlap."""

    spans: tuple[Span, ...]

    @classmethod
    def of_events(cls, events: Sequence[Event]) -> "Timeline":
        """Derives the starts; the first one is time 0."""
        before = _before(events)
        ends = [event.ended for event in events]
        for index in reversed(range(len(events))):
            # A watcher may wake up late: what came before has ended when its successor has.
            for earlier in before[index]:
                ends[earlier] = min(ends[earlier], ends[index])
        # A program may end while its asynchronous call is still on its way back.
        starts = [
            min(max([event.dispatched, *(ends[earlier] for earlier in before[index])]), ends[index])
            for index, event in enumerate(events)
        ]
        zero = min(starts, default=0.0)
        return cls(
            tuple(
                Span(event.name, event.device, event.round, 1e3 * (start - zero), 1e3 * (end - zero))
                for event, start, end in zip(events, starts, ends, strict=True)
            )
        )

    def named(self, name: str) -> dict[int, Span]:
        """Spans of one program by round."""
        return {span.round: span for span in self.spans if span.name == name}

    @property
    def devices(self) -> list[str]:
        """The target's device first."""
        return list(dict.fromkeys(span.device for span in self.spans))

    def overlap_ms(self) -> list[float]:
        """For each round, how long foresight ran beside the verification; empty if they are one program."""
        verify = self.named("verify")
        return [
            max(0.0, min(span.end_ms, verify[number].end_ms) - max(span.start_ms, verify[number].start_ms))
            for number, span in self.named("foresee").items()
            if number in verify
        ]

    @property
    def overlap_share(self) -> float | None:
        """Share of the foresight's time that ran beside the verification of its round."""
        total = sum(span.duration_ms for span in self.named("foresee").values())
        return sum(self.overlap_ms()) / total if total else None

    def waits_ms(self) -> list[float]:
        """For each round but the last, how long the target's device had nothing to do before the next verification.

        Less than the exposed drafting by the hand-over of the block, which lies in the span of the verification.
        """
        verify = list(self.named("verify").values())
        return [after.start_ms - before.end_ms for before, after in pairwise(verify)]

    @property
    def target_wait_ms(self) -> float | None:
        """Median of `waits_ms`; None for fused rounds, where nothing tells drafting from verification."""
        return _median(self.waits_ms())

    @property
    def verify_ms(self) -> float | None:
        """Median verification; None for fused rounds."""
        return _median([span.duration_ms for span in self.named("verify").values()])

    @property
    def round_ms(self) -> float | None:
        """Median time from the end of a round's verification (or fused program) to the end of the next one's."""
        ends = [span.end_ms for span in (self.named("verify") or self.named("round")).values()]
        return _median([after - before for before, after in pairwise(ends)])

    @property
    def summary(self) -> str:
        """One plain sentence."""
        rounds = len(self.named("verify") or self.named("round"))
        if self.round_ms is None:
            return f"{rounds} rounds recorded, too few for a timeline"
        if not self.named("foresee"):
            return (
                f"one program a round on one device, median of {rounds} rounds {self.round_ms:.2f} ms: nothing "
                "overlaps; --draft-device INDEX drafts on a second device meanwhile"
            )
        times = {"round": self.round_ms, "verify": self.verify_ms, "target waits": self.target_wait_ms}
        medians = ", ".join(f"{name} {value:.2f} ms" for name, value in times.items())
        share = f"{100 * (self.overlap_share or 0):.0f} %"
        return f"{share} of the foresight ran beside a verification; medians of {rounds} rounds: {medians}"

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        names = ("overlap_share", "round_ms", "verify_ms", "target_wait_ms")
        return {"rounds": len(self.named("verify") or self.named("round")), **{n: getattr(self, n) for n in names}}

    def to_chrome_trace(self) -> dict[str, Any]:
        """JSON object for chrome://tracing and ui.perfetto.dev: one process per device, microseconds."""
        process_of = {device: number for number, device in enumerate(self.devices, start=1)}
        events: list[dict[str, Any]] = []
        for device, number in process_of.items():
            for kind, label in (("process_name", self.lane_name(device)), ("thread_name", "programs")):
                events.append({"ph": "M", "name": kind, "pid": number, "tid": 1, "args": {"name": label}})
        for span in sorted(self.spans, key=lambda span: span.start_ms):
            events.append(
                {
                    "ph": "X",
                    "name": span.label,
                    "cat": span.name,
                    "pid": process_of[span.device],
                    "tid": 1,
                    "ts": 1e3 * span.start_ms,
                    "dur": 1e3 * span.duration_ms,
                    "args": {"round": span.round},
                }
            )
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def plot(self, path: str | Path) -> None:
        """Draws some rounds after the warm-up, a lane per device, as a PNG (or another format by the path's ending).

        Raises:
            ValueError: matplotlib is missing, or there is no round.
        """
        from jetspec_jax.evaluation.timeline_plot import plot_timeline

        plot_timeline(self, path)

    def lane_name(self, device: str) -> str:
        """A device and what it does."""
        if len(self.devices) == 1:
            return f"one device: {device}"
        return f"{'target' if device == self.devices[0] else 'draft'} device: {device}"


def _before(events: Sequence[Event]) -> list[list[int]]:
    """For each event, those that had to end before it could start: its needs, and the last one on its device."""
    before, last_on = [], {}
    for index, event in enumerate(events):
        last = last_on.get(event.device)
        before.append([*event.needs] if last is None else [*event.needs, last])
        last_on[event.device] = index
    return before


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
