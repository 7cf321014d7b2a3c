"""`jetspec bench`: is speculation worth it here, and with which block size?"""

import argparse
import json

from rich.console import Console

from jetspec_jax.commands.arguments import model_from, params_from, prompts_from
from jetspec_jax.evaluation.compare import compare
from jetspec_jax.evaluation.record import environment
from jetspec_jax.evaluation.tables import comparison_table


def run(args: argparse.Namespace) -> int:
    """Prints the comparison, the verdict and, as the last line, JSON."""
    if args.drafter == "autoregressive":
        raise ValueError("bench compares with plain decoding, so --drafter autoregressive has no meaning")
    if not args.num_drafts or min(args.num_drafts) < 1:
        raise ValueError(f"--num-drafts {args.num_drafts} must be positive; plain decoding is always measured")
    params = params_from(args)
    if not params.is_greedy and params.seed is None:
        raise ValueError("bench compares texts: give --seed at temperature > 0")
    prompts, template_kwargs = prompts_from(args)
    if template_kwargs:
        raise ValueError("bench takes no --template-arg")
    model = model_from(args)
    comparison = compare(model, prompts, params, num_drafts=args.num_drafts, drafter=args.drafter, repeats=args.repeats)
    record = {**environment(model), **comparison.to_dict()}
    if not args.json:
        console = Console()
        console.print(comparison_table(comparison))
        console.print(comparison.verdict, highlight=False)
    print(json.dumps(record))
    return 0
