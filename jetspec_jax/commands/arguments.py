"""From parsed arguments to library objects."""

import argparse
import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from jetspec_jax.api import load
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams

# Fields of SamplingParams that are options as they are; `logit_bias` is a list of pairs, processors are code.
_SAMPLING = tuple(
    field.name for field in fields(SamplingParams) if field.name not in ("logit_bias", "logits_processors")
)


def cache_folder() -> Path:
    """Where conversions and compiled programs are kept: `JETSPEC_CACHE`, or a folder in the user's cache."""
    return Path(os.environ.get("JETSPEC_CACHE", Path.home() / ".cache" / "jetspec_jax"))


def model_from(args: argparse.Namespace, *, num_drafts: int | None = None) -> LanguageModel:
    """Loads the model an invocation names."""
    return load(
        args.model,
        drafter=args.drafter,
        num_drafts=num_drafts,
        dtype=args.dtype,
        max_len=args.max_len,
        cache_dir=cache_folder(),
        progress=False if args.json else None,
    )


def params_from(args: argparse.Namespace) -> SamplingParams:
    """Sampling options of an invocation."""
    return SamplingParams(logit_bias=dict(args.logit_bias), **{name: getattr(args, name) for name in _SAMPLING})


def prompts_from(args: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    """Prompts (chats unless `--raw`) and chat template arguments.

    Raises:
        ValueError: no prompt, or options that contradict each other.
    """
    texts = list(args.prompt)
    if args.prompt_file is not None:
        texts += _read_prompts(args.prompt_file)
    if not texts and not sys.stdin.isatty():
        texts = [sys.stdin.read()]
    if not any(text.strip() for text in texts):
        raise ValueError("no prompt: give one as an argument, with --prompt-file or on stdin")
    if args.raw:
        if args.system is not None or args.template_arg:
            raise ValueError("--raw uses no chat template, so --system and --template-arg have no meaning")
        return texts, {}
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    template_kwargs = {}
    for item in args.template_arg:
        key, separator, value = item.partition("=")
        if not separator:
            raise ValueError(f"--template-arg {item!r} is not KEY=JSON")
        try:
            template_kwargs[key] = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"--template-arg {item!r}: {value!r} is not JSON ({error})") from error
    return [[*system, {"role": "user", "content": text}] for text in texts], template_kwargs


def _read_prompts(path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        prompts = json.loads(text)
        if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
            raise ValueError(f"{path} must hold a JSON list of strings")
        return prompts
    return [line for line in text.splitlines() if line.strip()]
