"""`jetspec inspect`."""

import argparse
import dataclasses
import json

from rich.console import Console

from jetspec_jax.checkpoints.inspect import inspect_checkpoint, render_report
from jetspec_jax.checkpoints.inspect_drafter import inspect_drafter, is_drafter_folder


def run(args: argparse.Namespace) -> int:
    """Prints what a checkpoint or a drafter folder holds; status 1 if loading it would be refused."""
    inspect = inspect_drafter if is_drafter_folder(args.source) else inspect_checkpoint
    report = inspect(args.source)
    if args.json:
        # Paths and nested configs as JSON has them.
        print(json.dumps(dataclasses.asdict(report), default=str))
    else:
        Console().print(render_report(report))
    return 1 if report.problems else 0
