"""`jetspec demo`: real text, and what plain decoding of the same text costs, measured in one run."""

import argparse

from rich.console import Console

from jetspec_jax.api import load
from jetspec_jax.commands.arguments import cache_folder
from jetspec_jax.commands.generate import stream_blocks
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import RefineConfig
from jetspec_jax.evaluation.compare import Run
from jetspec_jax.evaluation.lossless import check_lossless
from jetspec_jax.evaluation.tables import stats_table
from jetspec_jax.sampling_params import SamplingParams

# Prose, which is hard to draft, code, which is easier, and a text to repeat.
PROMPTS = (
    "Why is the sky blue? Answer in two sentences.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Repeat the following text word for word:\n\nThe old lighthouse keeper climbed the winding stairs every evening. "
    "He lit the lamp, wiped the glass, and watched the ships pass by. Every morning the old lighthouse keeper "
    "climbed down the winding stairs again, and slept until noon.",
)


def run(args: argparse.Namespace) -> int:
    """Streams the prompts with the blocks in colour, decodes them plainly too, and prints the table."""
    console = Console(highlight=False)
    params = SamplingParams(max_new_tokens=args.max_new_tokens)
    model = load(args.model, num_drafts=args.num_drafts, cache_dir=cache_folder())
    if isinstance(model.drafter, JetSpecPP) and model.device.platform == "cpu":
        # On CPU every row of a pass costs time, so that refinement rarely pays for itself (`docs/results.md`).
        model = model.with_drafter(model.drafter.with_drafting(refine=RefineConfig.parse("J0")))
    plain = model.with_drafter("autoregressive")
    console.print(
        f"{args.model}: {model.num_parameters / 1e6:.0f}M parameters, {model.dtype} on {model.device.platform}"
    )
    is_lossless = True
    for text in PROMPTS:
        prompt = [{"role": "user", "content": text}]
        console.rule()
        console.print(text, style="dim")
        stream_blocks(model, prompt, params, {}, console)
        plain.generate(prompt, params)  # compiles; both are then timed warm, one after the other
        outputs = [[warm.generate(prompt, params)] for warm in (model, plain)]
        console.print(stats_table(model.drafter, *outputs))
        speculative = Run(model.drafter.name, args.num_drafts, outputs[0])
        baseline = Run("autoregressive", 0, outputs[1])
        if not baseline.rounds:
            raise ValueError(f"--max-new-tokens {args.max_new_tokens} leaves nothing to measure, give at least 2")
        ratio = speculative.tokens_per_s / baseline.tokens_per_s
        if outputs[0][0].token_ids != outputs[1][0].token_ids:
            # In bf16 near ties may fall differently; anything else is a bug.
            output = outputs[0][0]
            report = check_lossless(model, output.prompt_token_ids, output.token_ids, params)
            is_lossless &= report.is_lossless
            console.print(report.verdict, style="green" if report.is_lossless else "bold red")
        console.print(f"speculation {'wins' if ratio > 1 else 'loses'} on this prompt: {ratio:.2f} x plain decoding")
    console.rule()
    console.print("every token is the target's own" if is_lossless else "THE TEXT IS NOT THE TARGET'S", style="bold")
    return 0 if is_lossless else 1
