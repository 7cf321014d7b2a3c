"""Where the time of a part of a round goes: kernels by their time, from a trace of JAX's profiler.

    python -m benchmarks.profile --kernels all --parts verify:17,verify:1,adapter:4,foresight:J1-R1/B4

A line a part: kernels a call, their time, the gaps between them, and the wall time of calls that are queued. Below it a
line a kernel name. Needs a GPU: traces of CPUs have no kernels.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

from benchmarks.parts import Part, Parts
from benchmarks.round import Bench, arguments_parser
from benchmarks.turn import Turn
from jetspec_jax.drafters import JetSpecPP

CALLS = 6  # traced


class ProfiledParts(Parts):
    """Parts that print a profile instead of being timed over many queues."""

    top = 25  # kernel names that are printed
    name = ""

    def _timed(self, call: Callable[[Any], Any], state: Any, num_bytes: int) -> Part:
        for _ in range(3):
            state = call(state)
        jax.block_until_ready(state)
        began = time.perf_counter()
        for _ in range(10 * CALLS):
            state = call(state)
        jax.block_until_ready(state)
        wall_ms = 1e3 * (time.perf_counter() - began) / (10 * CALLS)
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                for _ in range(CALLS):
                    state = call(state)
                jax.block_until_ready(state)
            for path in Path(folder).rglob("*.xplane.pb"):
                self._print(jax.profiler.ProfileData.from_file(str(path)), wall_ms)
        return Part(wall_ms, 0.0, num_bytes)

    def _print(self, profile: Any, wall_ms: float) -> None:
        for plane in profile.planes:
            for line in plane.lines:
                if "GPU" not in plane.name or "Stream" not in line.name:
                    continue
                events = sorted((event.start_ns, event.duration_ns, event.name) for event in line.events)
                if events:
                    print(summary(f"{self.name} {line.name}", events, wall_ms, self.top), flush=True)


def summary(title: str, events: Sequence[tuple[float, float, str]], wall_ms: float, top: int) -> str:
    """A part's lines.

    Args:
        events: start and duration in nanoseconds and kernel of each, by start, of `CALLS` calls.
        wall_ms: of a call.
        top: names.
    """
    busy = sum(duration for _, duration, _ in events)
    gaps = sum(max(0, after[0] - sum(before[:2])) for before, after in pairwise(events))
    by_name = defaultdict(list)
    for _, duration, name in events:
        by_name[name].append(duration)
    head = f"{title}: {len(events) / CALLS:.0f} kernels a call, {1e-3 * busy / CALLS:.1f} us in them, "
    lines = [f"{head}{1e-3 * gaps / CALLS:.1f} us between them; wall {1e3 * wall_ms:.1f} us"]
    for name, durations in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:top]:
        total, count = 1e-3 * sum(durations) / CALLS, len(durations) / CALLS
        lines.append(f"  {total:9.1f} us = {count:6.1f} x {total / count:8.2f}  {name[:90]}")
    return "\n".join(lines)


def main() -> None:
    """Profiles what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="verify:17,verify:1", help="verify:ROWS, draft|adapter|decoder:BLOCKS, ...")
    parser.add_argument("--top", type=int, default=ProfiledParts.top)
    own, options = parser.parse_known_args()
    args = arguments_parser().parse_args([*options, "--only", "parts"])
    turn = Turn(args.turn)
    turn.pause_compilation()
    bench = Bench(args, turn)
    for part in own.parts.split(","):
        kind, _, argument = part.partition(":")
        drafting = bench.drafting(argument if kind == "foresight" else "J1-R1/B4")
        drafter = JetSpecPP(bench.draft, bench.adapter, drafting=drafting)
        model = bench.base.with_drafter(drafter, draft_device=bench.draft_device)
        parts = bench.parts(model, ProfiledParts)
        parts.name, parts.top = part, own.top
        if kind == "foresight":
            parts.foresight()
        elif kind == "verify":
            parts.verification(int(argument))
        else:
            getattr(parts, f"{kind}_pass")(int(argument))
    turn.give_up()


if __name__ == "__main__":
    main()
