"""`jetspec generate`."""

import argparse
import dataclasses
import json

from rich.console import Console
from rich.text import Text

from jetspec_jax.commands.arguments import JETSPECPP, OTHER_DRAFTERS, model_from, params_from, prompts_from
from jetspec_jax.commands.trace import stream_traces
from jetspec_jax.decoding.round_trace import RoundTrace
from jetspec_jax.evaluation.tables import stats_table
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.outputs import GenerationOutput
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.text.blocks import ACCEPTED_STYLE, OWN_STYLE, BlockText


def run(args: argparse.Namespace) -> int:
    """Generates, streaming to the terminal; status 1 if a text ended in an error."""
    params = params_from(args)
    if args.json and args.show_blocks:
        raise ValueError("--show-blocks colours text on a terminal; --json prints none")
    if args.logprobs is not None and not args.json:
        raise ValueError("--logprobs are printed with --json only")
    if args.trace and args.drafter in OTHER_DRAFTERS:
        raise ValueError(f"--trace shows how blocks are refined: it needs --drafter {JETSPECPP}, not {args.drafter}")
    if args.trace and args.show_blocks:
        raise ValueError("give one of --trace and --show-blocks")
    prompts, template_kwargs = prompts_from(args)
    model = model_from(args, num_drafts=args.num_drafts, keep_trace=args.trace)
    console = Console(highlight=False)
    outputs, plain, traces = [], [], []
    for index, prompt in enumerate(prompts):
        if not args.json and len(prompts) > 1:
            console.rule(f"prompt {index}")
        output, rounds = _one(model, prompt, params, template_kwargs, args, console)
        outputs.append(output)
        traces.append(rounds)
    if args.compare:
        baseline = model.with_drafter("autoregressive")
        # A warm-up of each, so that neither time holds a compilation or a cold cache.
        baseline.generate(prompts[0], params, chat_template_kwargs=template_kwargs)
        plain = [baseline.generate(prompt, params, chat_template_kwargs=template_kwargs) for prompt in prompts]
        outputs = [model.generate(prompt, params, chat_template_kwargs=template_kwargs) for prompt in prompts]
    if args.json:
        record = {"outputs": [o.to_dict() for o in outputs], "plain": [o.to_dict() for o in plain]}
        if args.trace:
            record["traces"] = [[dataclasses.asdict(trace) for trace in rounds] for rounds in traces]
        print(json.dumps(record))
    else:
        console.print(stats_table(model.drafter, outputs, plain))
        for output in outputs:
            if output.error:
                console.print(output.error, style="red")
    return 1 if any(output.finish_reason == "error" for output in outputs) else 0


def _one(
    model: LanguageModel, prompt, params: SamplingParams, template_kwargs, args: argparse.Namespace, console: Console
) -> tuple[GenerationOutput, list[RoundTrace]]:
    if args.show_blocks:
        return stream_blocks(model, prompt, params, template_kwargs, console), []
    if args.trace and not args.json:
        return stream_traces(model, prompt, params, template_kwargs, console)
    output, traces = None, []
    for chunk in model.stream(prompt, params, chat_template_kwargs=template_kwargs):
        output = chunk.output or output
        traces += [] if chunk.trace is None else [chunk.trace]
        if not args.json:
            console.print(chunk.text, end="", markup=False, soft_wrap=True)
    if not args.json:
        console.print()
    return output, traces


def stream_blocks(
    model: LanguageModel, prompt, params: SamplingParams, template_kwargs, console: Console
) -> GenerationOutput:
    """Streams one prompt; accepted drafts and the target's own tokens differ in colour."""
    blocks = BlockText(model.tokenizer)
    output = None
    for chunk in model.stream(prompt, params, chat_template_kwargs=template_kwargs):
        output = chunk.output or output
        for text, is_accepted in blocks.push(chunk):
            console.print(Text(text, ACCEPTED_STYLE if is_accepted else OWN_STYLE), end="", soft_wrap=True)
    console.print()
    console.print(Text.assemble(("accepted drafts", ACCEPTED_STYLE), "  ", ("the target's own tokens", OWN_STYLE)))
    return output
