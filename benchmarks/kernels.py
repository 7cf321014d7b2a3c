"""Every kernel at its named shapes against the library's XLA form and the plain reference: times, floors, errors.

A time is the median of queues of programs, each a chain of calls on operand sets that rotate (`chains.py`). `is_cold`
says whether the sets together exceed the second-level cache by enough that what a call reads comes from memory, as the
weights and caches of Qwen3-8B do. SwiGLU, norms and rotations are warm, in a real step too; SmolLM2's small weights are
warm here only. The floor is the bytes that must move at the read bandwidth measured in the same run.

    python -m benchmarks.kernels --out benchmarks/results/kernels_h200.json
    python -m benchmarks.kernels --ops matmul --shapes gate-up/17,down/17 --sweep

Prints a JSON line a measurement as it goes; the last line is the whole record, also when time is up or a kernel hangs.
"""

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import Case, cases_of
from benchmarks.chains import L2_BYTES, Chain, Inputs, num_loops, num_sets
from benchmarks.timing import read_bandwidth
from jetspec_jax.evaluation.record import environment
from jetspec_jax.ops.kernels import OPS

FORMS = ("kernel", "xla", "reference")
WRONG = 0.05  # of the largest value: sums of bf16 in another order are well within it
GRACE_SECONDS = 45  # beyond the limit, for what is under way; longer is a kernel that hangs


class Record:
    """What has been measured, printed line by line and as a whole.

    Args:
        head: what stands at the top.
        path: file for the whole, None for none.
    """

    def __init__(self, head: dict[str, Any], path: Path | None):
        self.whole = {**head, "measurements": [], "sweeps": []}
        self._path = path
        self._lock = threading.Lock()

    def add(self, kind: str, entry: dict[str, Any]) -> None:
        """Keeps an entry of `measurements` or `sweeps`."""
        self.whole[kind].append(entry)
        self.say(entry)

    def say(self, entry: dict[str, Any]) -> None:
        """Prints an entry that is not kept."""
        print(json.dumps(entry), flush=True)

    def finish(self, stopped: str | None) -> None:
        """Prints and writes the whole, once; `stopped` is why it is not complete."""
        if not self._lock.acquire(blocking=False):
            return
        self.whole["stopped"] = stopped
        if self._path is not None:
            self._path.write_text(json.dumps(self.whole, indent=1) + "\n")
        print(json.dumps(self.whole), flush=True)


class Deadline:
    """The end of the time there is.

    Args:
        seconds: from now on.
        on_hang: called from another thread, and the process ended, if the program has not stopped well after that.
    """

    def __init__(self, seconds: float, on_hang: Callable[[str], None]):
        self._end = time.monotonic() + seconds
        self._on_hang = on_hang
        self._timer = threading.Timer(seconds + GRACE_SECONDS, self._give_up)
        self._timer.daemon = True
        self._timer.start()
        self.doing = ""

    def is_over(self) -> bool:
        """Whether nothing new should be begun."""
        return time.monotonic() >= self._end

    def cancel(self) -> None:
        """Everything is done."""
        self._timer.cancel()

    def _give_up(self) -> None:
        self._on_hang(f"hung: {self.doing}")
        os._exit(1)


class Bench:
    """Measures cases on the first device.

    Args:
        bandwidth: bytes a second, for floors.
        repeats: queues behind each median.
        deadline: is told what is being done.
        forms: of `FORMS`, those that are timed.
    """

    def __init__(self, bandwidth: float, repeats: int, deadline: Deadline, forms: Sequence[str] = FORMS):
        self.bandwidth, self.repeats, self.deadline, self.forms = bandwidth, repeats, deadline, forms
        # Kernels that ask nothing of the device would fail on it in ways of their own.
        device = jax.devices()[0]
        self.refusal = None if device.platform == "gpu" else f"no kernels on {device.device_kind} ({device.platform})"

    def compare(self, op: str, case: Case) -> dict[str, Any]:
        """All forms of a case: times, floor and errors."""
        inputs, wanted = self._prepare(case)
        floor_us = 1e6 * case.num_bytes / self.bandwidth
        entry = {"op": op, "shape": case.name, "bytes": case.num_bytes, "floor_ms": floor_us / 1e3}
        entry |= {"sets": len(inputs), "is_cold": len(inputs) * case.num_bytes > 2 * L2_BYTES}
        forms = {"kernel": case.kernel, "xla": case.xla, "reference": case.reference}
        for name in self.forms:
            entry[name] = self._measure(f"{op} {case.name} {name}", case, forms[name], inputs, wanted)
        if all(is_usable(entry.get(name, {})) for name in ("kernel", "xla")):
            entry["speedup_over_xla"] = entry["xla"]["ms"] / entry["kernel"]["ms"]
        return entry

    def sweep(self, op: str, case: Case, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """The kernel with its default config and all others; the best, and those that fail or give wrong results."""
        entry = {"op": op, "shape": case.name, "best": None, "timed": [], "failed": []}
        if self.refusal is not None:
            return entry | {"refused": self.refusal}
        inputs, wanted = self._prepare(case)
        for config in [None, *case.configs()]:
            if self.deadline.is_over():
                break
            form = lambda *arrays, config=config: case.kernel(*arrays, config=config)  # noqa: E731
            what = f"{op} {case.name} {config}"
            result = {"config": "default" if config is None else repr(config)}
            result |= self._measure(what, case, form, inputs, wanted)
            entry["timed" if is_usable(result) else "failed"].append(result)
            say({"op": op, "shape": case.name, **result})
        entry["timed"].sort(key=lambda result: result["ms"])
        if entry["timed"]:
            entry["best"] = entry["timed"][0]
        return entry

    def _prepare(self, case: Case) -> tuple[list[Inputs], Any]:
        make = jax.jit(case.make)
        # Gigabytes of them: the device's own generator is the fastest.
        inputs = [make(jax.random.key(index, impl="rbg")) for index in range(num_sets(case.num_bytes))]
        return inputs, jax.block_until_ready(jax.jit(case.reference)(*inputs[0].arguments))

    def _measure(self, what: str, case: Case, form: Callable, inputs: Sequence[Inputs], wanted: Any) -> dict[str, Any]:
        self.deadline.doing = what
        if form is case.kernel and self.refusal is not None:
            return {"refused": self.refusal}
        floor_us = 1e6 * case.num_bytes / self.bandwidth
        try:
            chain = Chain(form, inputs, num_loops(floor_us, len(inputs)))
            errors = error_of(chain.run(), wanted)
            times = chain.measure(self.repeats)
        except NotImplementedError as reason:
            return {"refused": str(reason)}
        except Exception as error:  # whatever one form or config does, the others are still of interest
            return {"failed": f"{type(error).__name__}: {str(error).strip().partition('\n')[0][:300]}"}
        return {**times, "of_floor": floor_us / (1e3 * times["ms"]), **errors}


def error_of(results: Any, wanted: Any) -> dict[str, Any]:
    """How far results are from those wanted.

    Returns:
        `max_error`: the largest difference of any two floats, and `of_largest`: as a share of the largest one wanted in
        the same array, its worst; "not finite" where one is not. `unequal`: integers that differ, if there are any.
    """
    worst, share, unequal = 0.0, 0.0, None
    for ours, theirs in zip(jax.tree.leaves(results), jax.tree.leaves(wanted), strict=True):
        if not jnp.issubdtype(theirs.dtype, jnp.floating):
            unequal = (unequal or 0) + int(jnp.sum(ours != theirs))
            continue
        difference = float(jnp.max(jnp.abs(ours.astype(jnp.float32) - theirs.astype(jnp.float32))))
        largest = float(jnp.max(jnp.abs(theirs.astype(jnp.float32))))
        worst, share = np.maximum(worst, difference), np.maximum(share, difference / max(largest, 1e-30))
    errors = {"max_error": float(worst), "of_largest": float(share)}
    if not np.isfinite(worst):
        errors = dict.fromkeys(errors, "not finite")
    return errors if unequal is None else errors | {"unequal": unequal}


def is_usable(result: dict[str, Any]) -> bool:
    """Whether a form ran and what it gave is right."""
    return "ms" in result and result["of_largest"] != "not finite" and result["of_largest"] < WRONG


def summary(measurements: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each operation the geometric mean of its speedups over XLA, and the shapes where the kernel is slower."""
    ops: dict[str, dict[str, Any]] = {}
    for entry in measurements:
        if "speedup_over_xla" in entry:
            of_op = ops.setdefault(entry["op"], {"speedups": [], "slower": []})
            of_op["speedups"].append(entry["speedup_over_xla"])
            if entry["speedup_over_xla"] < 1:
                of_op["slower"].append(entry["shape"])
    return {
        op: {"speedup_over_xla": statistics.geometric_mean(found["speedups"]), "slower": found["slower"]}
        for op, found in ops.items()
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default=",".join(OPS), help="names with commas")
    parser.add_argument("--shapes", default="", help="parts of names with commas: shapes that contain one of them")
    parser.add_argument(
        "--forms", default=",".join(FORMS), help="what is timed; errors are those against the reference"
    )
    parser.add_argument("--sweep", action="store_true", help="all configs of each kernel, nothing else")
    parser.add_argument("--context", type=int, default=1024, help="tokens in the caches that attention reads")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--max-seconds", type=float, default=480)
    parser.add_argument("--bandwidth-bytes", type=int, default=2**32)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args(arguments)
    for given, known in ((args.ops, OPS), (args.forms, FORMS)):
        if unknown := sorted(set(given.split(",")) - set(known)):
            parser.error(f"unknown {unknown}; there are {list(known)}")
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is asked for and prints the record."""
    args = parse(arguments)
    record = Record({**environment(), "context": args.context, "repeats": args.repeats}, args.out)
    deadline = Deadline(args.max_seconds, record.finish)
    deadline.doing = "read bandwidth"
    bandwidth = read_bandwidth(jax.devices()[0], args.bandwidth_bytes, args.repeats)
    record.whole["read_bandwidth_tb_s"] = bandwidth / 1e12
    record.say({"read_bandwidth_tb_s": bandwidth / 1e12})
    stopped = measure_all(args, Bench(bandwidth, args.repeats, deadline, args.forms.split(",")), record)
    record.whole["summary"] = summary(record.whole["measurements"])
    record.finish(stopped)
    deadline.cancel()


def measure_all(args: argparse.Namespace, bench: Bench, record: Record) -> str | None:
    """Goes through the cases that are asked for; returns why it stopped before the last one."""
    for op in args.ops.split(","):
        for case in cases_of(op, context_len=args.context):
            if not any(part in case.name for part in args.shapes.split(",")):
                continue
            if bench.deadline.is_over():
                return f"time was up before {op} {case.name}"
            try:
                if args.sweep:
                    record.add("sweeps", bench.sweep(op, case, record.say))
                else:
                    record.add("measurements", bench.compare(op, case))
            except Exception as error:  # a kernel has broken the device for good, or memory is full
                return f"{op} {case.name}: {type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    main()
