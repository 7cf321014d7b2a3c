"""The record of `benchmarks/round.py` by processes that compile side by side and use the devices one at a time.

A program of the Qwen3-8B shape takes half a minute to a minute and a half to compile and a record has two dozen of
them. Each configuration, the parts with plain decoding, and the peer are a process of their own; all take turns on the
devices (`turn.py`), so that nothing else runs while something is timed. Each process keeps what it has measured, and
when time is up what there is becomes the record; `missing` names the rest.

    python -m benchmarks.round_record --max-seconds 420 --peer --out benchmarks/results/round_h200.json

Options that are not listed here go to every process of `benchmarks.round`.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.round import with_headlines

MAPS = ("round_ms", "fused_ms", "tau", "hit_rate", "tokens_per_s", "host_ms")  # by configuration
VERIFY = "verify 17"
HOW = "each configuration, the parts and the peer compiled in processes of their own, timed one at a time"


class Task:
    """One process.

    Args:
        name: of the task, and of its files.
        options: for `benchmarks.round`.
        folder: for its record and what it prints.
        device: the only one it sees, by number; None: all.
    """

    def __init__(self, name: str, module: str, options: list[str], folder: Path, device: str | None = None):
        self.name = name
        self._record = folder / f"{name.replace('/', '-')}.json"
        self._printed = self._record.with_suffix(".txt")
        command = [sys.executable, "-m", module, *options]
        command += ["--out", str(self._record)] if module == "benchmarks.round" else []
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
        environment |= {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        with self._printed.open("w") as printed:
            options = {"stdout": printed, "stderr": subprocess.STDOUT, "env": environment, "start_new_session": True}
            self._process = subprocess.Popen(command, **options)

    def is_running(self) -> bool:
        """Whether it is not over yet."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends it and all it has started."""
        if self.is_running():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def lines(self) -> list[str]:
        """What it has printed."""
        return self._printed.read_text().strip().splitlines()

    def record(self) -> dict[str, Any] | None:
        """What it has measured so far."""
        if self._record.exists():
            return json.loads(self._record.read_text())
        return json.loads(self.lines()[-1]) if self.lines() and self.lines()[-1].startswith("{") else None

    def problem(self) -> str | None:
        """Why its record is not whole."""
        if self._process.returncode == 0:
            return None
        return f"stopped with {self._process.returncode}: {(self.lines() or ['nothing printed'])[-1][:300]}"


def merged(base: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """One record of all.

    Args:
        base: that of the parts; every floor is computed from its bandwidth.
        others: those of the configurations.
    """
    record = {**base, "how": HOW, "command": shlex.join(["python", "-m", "benchmarks.round_record", *sys.argv[1:]])}
    for other in others:
        for name in MAPS:
            record[name] = {**record[name], **other[name]}
        for name, part in other["parts"].items():
            floor = 1e-9 * part["bytes"] / base["read_bandwidth_tb_s"]
            record["parts"].setdefault(name, part | {"floor_ms": floor, "of_floor": floor / part["ms"]})
        for op, reasons in other.get("refused", {}).items():
            record.setdefault("refused", {})[op] = sorted({*record.get("refused", {}).get(op, ()), *reasons})
    return with_headlines(record, VERIFY)


def main() -> None:
    """Starts all, waits, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", default="J1-R1/B4,J1-R1/B8,J3-R3/B4,J0/B4")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer-device", default="0", help="number of its GPU; memory is scarce on the target's")
    parser.add_argument("--peer-options", default="", help="for benchmarks.peer")
    parser.add_argument("--turn", type=Path, required=True, help="lock file, shared with other benchmarks")
    parser.add_argument("--folder", type=Path, required=True, help="for what the processes print and measure")
    parser.add_argument("--max-seconds", type=float, default=480)
    parser.add_argument("--out", type=Path, required=True)
    args, options = parser.parse_known_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    end, turn = time.monotonic() + args.max_seconds, ["--turn", str(args.turn)]
    parts = Task("parts", "benchmarks.round", ["--only", "parts,ar", *turn, *options], args.folder)
    configs = [
        Task(name, "benchmarks.round", ["--only", "rounds,foresight", "--configs", name, *turn, *options], args.folder)
        for name in args.configs.split(",")
    ]
    peer = []
    if args.peer:
        peer_options = [*turn, *args.peer_options.split()]
        peer.append(Task("peer", "benchmarks.peer", peer_options, args.folder, args.peer_device))
    tasks = [parts, *configs, *peer]
    while any(task.is_running() for task in tasks) and time.monotonic() < end:
        time.sleep(0.2)
    for task in tasks:
        task.stop()
    base = parts.record()
    if base is None:
        raise SystemExit(f"no parts: {parts.problem()}")
    record = merged(base, [found for task in configs if (found := task.record()) is not None])
    record["peer_ms"] = peer[0].record() if peer else None
    record["missing"] = {task.name: problem for task in tasks if (problem := task.problem()) is not None}
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
