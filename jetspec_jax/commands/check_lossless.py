"""`jetspec check-lossless`."""

import argparse
import dataclasses
import json

from rich.console import Console

from jetspec_jax.commands.arguments import model_from, params_from, prompts_from
from jetspec_jax.evaluation.lossless import check_lossless


def run(args: argparse.Namespace) -> int:
    """Generates each prompt and teacher-forces it; status 1 if a difference is more than a tie."""
    params = params_from(args)
    if not params.is_greedy and params.seed is None:
        raise ValueError("check-lossless at temperature > 0 needs --seed")
    prompts, template_kwargs = prompts_from(args)
    model = model_from(args, num_drafts=args.num_drafts)
    reports = []
    console = Console(highlight=False)
    for index, prompt in enumerate(prompts):
        output = model.generate(prompt, params, chat_template_kwargs=template_kwargs)
        report = check_lossless(model, output.prompt_token_ids, output.token_ids, params)
        reports.append(report)
        if not args.json:
            style = "green" if report.is_lossless else "bold red"
            console.print(f"prompt {index}: {report.verdict}", style=style)
    if args.json:
        rows = [{**dataclasses.asdict(r), "is_lossless": r.is_lossless, "verdict": r.verdict} for r in reports]
        print(json.dumps(rows))
    return 0 if all(report.is_lossless for report in reports) else 1
