"""The record of `benchmarks/round.py` by processes that compile side by side and use the devices one at a time.

A program of the Qwen3-8B shape takes half a minute to a minute and a half to compile and a record has two dozen of
them. The parts with plain decoding, the rounds and the foresight of each configuration, and the peer are tasks with a
process of their own (`round_task.py`); all take turns on the devices (`turn.py`), so that nothing else runs while
something is timed. Each process keeps what it has measured, and when time is up what there is becomes the record:
`failed` has why a task stopped, `missing` what the record lacks.

    python -m benchmarks.round_record --max-seconds 420 --peer --out benchmarks/results/round_h200.json

Options that are not listed here are those of `benchmarks.round`. Prints JSON lines as it goes; the last one is the
whole record, which is also written whenever something has been measured.
"""

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import round as single
from benchmarks.headlines import PASSES, with_headlines
from benchmarks.round_task import Task, written

MAPS = ("round_ms", "fused_ms", "tau", "hit_rate", "tokens_per_s", "host_ms")  # by configuration
TASKS = ("parts", "rounds", "peer", "foresight")
HOW = "parts, rounds and foresight of each configuration, and the peer compiled side by side, timed one at a time"
MEMORY = 0.9  # of a device for the arrays of all; the rest is for compiled code and what frameworks keep


def merged(base: dict[str, Any], others: Sequence[dict[str, Any]], num_drafts: int) -> dict[str, Any]:
    """One record of all.

    Args:
        base: that of the parts; every floor is computed from its bandwidth.
        others: those of the configurations.
        num_drafts: γ.
    """
    record = {**base, "parts": dict(base["parts"]), "refused": dict(base.get("refused", {}))}
    for other in others:
        for name in MAPS:
            record[name] = {**record[name], **other[name]}
        for name, part in other["parts"].items():
            floor = 1e-9 * part["bytes"] / base["read_bandwidth_tb_s"]  # bytes over TB/s are picoseconds
            record["parts"].setdefault(name, part | {"floor_ms": floor, "of_floor": floor / part["ms"]})
        for op, reasons in other.get("refused", {}).items():
            record["refused"][op] = sorted({*record["refused"].get(op, ()), *reasons})
    return with_headlines(record, num_drafts)


class Tasks:
    """All tasks, of which some are running.

    Args:
        args: the command line of this module.
        options: that of `benchmarks.round`.
        shared: its part that every process gets.
    """

    def __init__(self, args: argparse.Namespace, options: argparse.Namespace, shared: Sequence[str]):
        self.args, self.options, self.began = args, options, time.monotonic()
        self.chosen, self.configs = args.tasks.split(","), options.configs.split(",")
        if unknown := sorted(set(self.chosen) - set(TASKS)):
            raise SystemExit(f"unknown tasks {unknown}; there are {list(TASKS)}")
        args.folder.mkdir(parents=True, exist_ok=True)
        turn = ["--turn", str(args.turn)]
        measure = [sys.executable, "-m", "benchmarks.round", *shared, *turn]
        sizes = {"--shape": options.shape, "--context": options.context, "--repeats": options.repeats}
        peer = [options.peer_python, "-m", "benchmarks.peer", *(str(word) for pair in sizes.items() for word in pair)]
        peer += ["--rows", f"1,{options.num_drafts + 1}", *turn, *shlex.split(args.peer_options)]
        of_config = {
            kind: [
                Task(f"{kind} {name}", [*measure, "--only", kind, "--configs", name], args.folder)
                for name in self.configs
            ]
            for kind in ("rounds", "foresight")
        }
        tasks = {
            "parts": [Task("parts", [*measure, "--only", "parts,ar,more_parts"], args.folder)],
            "rounds": of_config["rounds"],
            "peer": [Task("peer", peer, args.folder, device=args.peer_device, has_record=False)]
            if options.peer
            else [],
            "foresight": of_config["foresight"],
        }
        self.tasks = [task for kind in TASKS if kind in self.chosen for task in tasks[kind]]
        # Without a limit each process keeps up to twice what it needs: allocations double.
        share = MEMORY / args.max_children
        self.environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{share:.3f}"}

    def run(self) -> dict[str, Any]:
        """Runs all until time is up; returns the record."""
        end = self.began + self.args.max_seconds
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # the processes end with this one
        try:
            while time.monotonic() < end and not all(task.is_over for task in self.tasks):
                running = sum(task.is_running for task in self.tasks)
                for task in [task for task in self.tasks if not task.has_begun][: self.args.max_children - running]:
                    task.start(self.environment)
                    self._say(task, started=True)
                time.sleep(0.2)
                news = [(task, line) for task in self.tasks for line in task.news()]
                for task, line in news:
                    self._say(task, **line)
                if news:
                    self.record()
        finally:
            for task in self.tasks:
                task.stop()
            signal.signal(signal.SIGTERM, before)
        return self.record()

    def record(self) -> dict[str, Any]:
        """What there is so far, which is also written."""
        found = {task.name: task.record() for task in self.tasks}
        peer = found.pop("peer", None)
        records = [record for record in found.values() if record is not None]
        record: dict[str, Any] = {}
        if records:
            record = merged(records[0], records[1:], self.options.num_drafts)
        command = shlex.join(["python", "-m", "benchmarks.round_record", *self.args.given])
        record |= {"peer_ms": peer, "how": HOW, "command": command}
        record |= {"failed": {task.name: problem for task in self.tasks if (problem := task.problem()) is not None}}
        record["missing"] = self._missing(record)
        written(record, self.args.out)
        return record

    def _missing(self, record: dict[str, Any]) -> list[str]:
        """What was asked for and is not in the record."""
        parts, rows, wanted = record.get("parts", {}), self.options.num_drafts, {}
        if "parts" in self.chosen:
            names = [f"verify {num_rows}" for num_rows in (rows + 1, 1, rows)]
            names += [f"{name} x{blocks}" for blocks in self.options.blocks.split(",") for name in PASSES]
            wanted |= {name: name in parts for name in names} | {"ar_tokens_per_s": "ar_tokens_per_s" in record}
        for name in self.configs:
            if "rounds" in self.chosen:
                has = any(name in record.get(key, {}) for key in ("round_ms", "fused_ms"))
                wanted[f"rounds {name}"] = has and (not self.options.fused or name in record["fused_ms"])
            if "foresight" in self.chosen:
                wanted[f"foresight {name}"] = f"foresight {name}" in parts
        if self.options.peer:
            peer = record["peer_ms"] or {}
            wanted["peer"] = len(peer.get("compiled", {})) == 2
        return [name for name, is_there in wanted.items() if not is_there]

    def _say(self, task: Task, **entry: Any) -> None:
        print(json.dumps({"s": round(time.monotonic() - self.began, 1), "task": task.name, **entry}), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts all, waits, and writes the record."""
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(description=__doc__, **style)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS), help="some of %(default)s")
    parser.add_argument("--max-seconds", type=float, default=480, help="what is not done then is stopped")
    parser.add_argument(
        "--max-children", type=int, default=6, help="processes at once, which share the devices' memory"
    )
    parser.add_argument("--peer-device", default="0", help="number of its GPU; memory is scarce on the target's")
    parser.add_argument("--peer-options", default="", help="more for benchmarks.peer")
    parser.add_argument("--turn", type=Path, default=None, help="lock file, where other benchmarks share the devices")
    parser.add_argument("--folder", type=Path, default=None, help="for what the processes print and measure")
    given = sys.argv[1:] if arguments is None else list(arguments)
    args, shared = parser.parse_known_args(given)
    args.given = given
    args.folder = args.folder or args.out.with_suffix(".tasks")
    args.turn = args.turn or args.folder / "turn"
    options = single.arguments_parser().parse_args(shared)  # a mistake shows before anything starts
    shared = [option for option in shared if option != "--peer"]
    print(json.dumps(Tasks(args, options, shared).run()))


if __name__ == "__main__":
    main()
