"""`jetspec demo`: real text, and what plain decoding of the same text costs, measured in one run."""

import argparse
from collections.abc import Sequence

from rich.console import Console

from jetspec_jax.api import load
from jetspec_jax.commands.arguments import cache_folder
from jetspec_jax.commands.generate import stream_blocks
from jetspec_jax.evaluation.compare import Run, decode_in_turns
from jetspec_jax.evaluation.lossless import check_lossless
from jetspec_jax.evaluation.sample_prompts import SAMPLE_PROMPTS
from jetspec_jax.evaluation.tables import stats_table
from jetspec_jax.sampling_params import SamplingParams

_PASSES = 3  # how often each text is timed; medians count


def run(args: argparse.Namespace) -> int:
    """Streams the prompts with the blocks in colour, decodes them plainly too, and prints the tables."""
    console = Console(highlight=False)
    if args.max_new_tokens < 2:
        raise ValueError(f"--max-new-tokens {args.max_new_tokens} leaves nothing to measure, give at least 2")
    params = SamplingParams(max_new_tokens=args.max_new_tokens)
    model = load(args.model, num_drafts=args.num_drafts, cache_dir=cache_folder())
    plain = model.with_drafter("autoregressive")
    console.print(
        f"{args.model}: {model.num_parameters / 1e6:.0f}M parameters, {model.dtype} on {model.device.platform}"
    )
    is_lossless, runs = True, []
    for text in SAMPLE_PROMPTS:
        prompt = [{"role": "user", "content": text}]
        console.rule()
        console.print(text, style="dim")
        stream_blocks(model, prompt, params, {}, console)
        # Both warm and in turns, so that what else the machine does hits both.
        plainly, speculative = decode_in_turns([plain, model], [prompt], params, _PASSES)
        runs.append((plainly, speculative))
        console.print(stats_table(model.drafter, speculative.outputs, plainly.outputs))
        (output,), (expected,) = speculative.outputs, plainly.outputs
        if output.token_ids != expected.token_ids:
            # In bf16 near ties may fall differently; anything else is a bug.
            report = check_lossless(model, output.prompt_token_ids, output.token_ids, params)
            is_lossless &= report.is_lossless
            console.print(report.verdict, style="green" if report.is_lossless else "bold red")
        console.print(_verdict(plainly, speculative, "this prompt"))
    console.rule()
    console.print(_verdict(*(_joined(of_model) for of_model in zip(*runs, strict=True)), "all prompts together"))
    console.print("every token is the target's own" if is_lossless else "THE TEXT IS NOT THE TARGET'S", style="bold")
    return 0 if is_lossless else 1


def _joined(runs: Sequence[Run]) -> Run:
    """The same drafter's runs as one."""
    return Run(runs[0].drafter, runs[0].num_drafts, [output for run in runs for output in run.outputs])


def _verdict(plain: Run, speculative: Run, what: str) -> str:
    ratio = speculative.tokens_per_s / plain.tokens_per_s
    return f"speculation {'wins' if ratio > 1 else 'loses'} on {what}: {ratio:.2f} x plain decoding"
