"""`jetspec bench`: is speculation worth it on this machine, and with which drafter and block size?"""

import argparse
import json

from rich.console import Console

from jetspec_jax.commands.arguments import (
    JETSPECPP,
    OTHER_DRAFTERS,
    draft_device_from,
    drafting_from,
    model_from,
    params_from,
    prompts_from,
)
from jetspec_jax.drafters.naming import AUTO
from jetspec_jax.evaluation.candidates import candidate_names, candidate_sizes, candidates
from jetspec_jax.evaluation.compare import compare
from jetspec_jax.evaluation.record import environment
from jetspec_jax.evaluation.sample_prompts import SAMPLE_PROMPTS
from jetspec_jax.evaluation.tables import comparison_table, speedup_table
from jetspec_jax.evaluation.timeline_plot import check_plotting

_MOST_COLUMNS = 8  # prompts beside each other in a terminal
_NEEDS_FORESIGHT = f"--timeline shows drafting ahead: it needs --drafter {JETSPECPP} with --outcomes 1 or more"


def run(args: argparse.Namespace) -> int:
    """Prints the comparison, the verdict and, as the last line, JSON."""
    if args.drafter == "autoregressive":
        raise ValueError("bench compares with plain decoding, so --drafter autoregressive has no meaning")
    if args.num_drafts is not None and min(args.num_drafts, default=0) < 1:
        raise ValueError(f"--num-drafts {args.num_drafts} must be positive; plain decoding is always measured")
    if args.timeline is not None:
        _check_timeline(args)
    params = params_from(args)
    if not params.is_greedy and params.seed is None:
        raise ValueError("bench compares texts: give --seed at temperature > 0")
    prompts, template_kwargs = prompts_from(args, samples=SAMPLE_PROMPTS)
    if template_kwargs:
        raise ValueError("bench takes no --template-arg")
    model = model_from(args)
    if args.timeline is not None and not getattr(model.drafter, "foresees", False):
        raise ValueError(_NEEDS_FORESIGHT)
    drafting, draft_device = drafting_from(args), draft_device_from(args)
    is_told = args.drafter != AUTO or drafting is not None or draft_device is not None
    tried = candidates(
        model,
        (args.drafter,) if is_told else candidate_names(model),
        args.num_drafts or candidate_sizes(model),
        drafting=drafting,
        draft_device=draft_device,
    )
    comparison = compare(model, prompts, params, tried, passes=args.passes, repeats=args.repeats)
    record = {**environment(model), "prompts": len(prompts), **comparison.to_dict()}
    if not args.json:
        console = Console()
        console.print(comparison_table(comparison))
        if 1 < len(prompts) <= _MOST_COLUMNS:
            console.print(speedup_table(comparison))
        console.print(comparison.verdict, highlight=False)
    if args.timeline is not None:
        fastest = comparison.fastest_speculative
        timeline, plot = fastest.timeline, args.timeline.with_suffix(".png")
        args.timeline.write_text(json.dumps(timeline.to_chrome_trace()), encoding="utf-8")
        timeline.plot(plot)
        record["timeline"] = {"num_drafts": fastest.num_drafts, **timeline.to_dict()}
        if not args.json:
            console.print(f"Timeline with {fastest.num_drafts} drafts: {timeline.summary}.", highlight=False)
            console.print(f"Written to {args.timeline} (ui.perfetto.dev opens it) and {plot}.", highlight=False)
    print(json.dumps(record))
    return 0


def _check_timeline(args: argparse.Namespace) -> None:
    """Refuses before minutes of measuring what could not be written after them."""
    if args.drafter in OTHER_DRAFTERS or args.num_outcomes == 0:
        raise ValueError(_NEEDS_FORESIGHT)
    if args.timeline.suffix != ".json":
        raise ValueError(f"--timeline {args.timeline} must end in .json; the plot is written beside it")
    if not args.timeline.parent.is_dir():
        raise ValueError(f"--timeline {args.timeline}: there is no folder {args.timeline.parent}")
    check_plotting()
