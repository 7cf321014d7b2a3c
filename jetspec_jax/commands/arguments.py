"""From parsed arguments to library objects."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax

from jetspec_jax.api import load
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams

# Fields of SamplingParams that are options as they are; `logit_bias` is a list of pairs, processors are code.
_SAMPLING = tuple(
    field.name for field in fields(SamplingParams) if field.name not in ("logit_bias", "logits_processors")
)

JETSPECPP = "jetspec++"
# Drafters that none of the options below belong to; any other may be JetSpec++ over some weights.
OTHER_DRAFTERS = ("autoregressive", "ngram", "parallel")
# Options of JetSpec++, by the name of their argument; None means not given.
_JETSPECPP_OPTIONS = {
    "refine": "--refine",
    "num_outcomes": "--outcomes",
    "miss_policy": "--miss-policy",
    "outcome_rule": "--outcome-rule",
    "couple_noise": "--no-coupled-noise",
    "draft_weights": "--draft-weights",
    "draft_device": "--draft-device",
}


def cache_folder() -> Path:
    """Where conversions and compiled programs are kept: `JETSPEC_CACHE`, or a folder in the user's cache."""
    return Path(os.environ.get("JETSPEC_CACHE", Path.home() / ".cache" / "jetspec_jax"))


def model_from(args: argparse.Namespace, *, num_drafts: int | None = None, keep_trace: bool = False) -> LanguageModel:
    """Loads the model an invocation names."""
    drafting, draft_device = drafting_from(args, keep_trace=keep_trace), draft_device_from(args)
    model = load(
        args.model,
        drafter=args.drafter,
        num_drafts=num_drafts,
        drafting=drafting,
        dtype=args.dtype,
        max_len=args.max_len,
        draft_device=draft_device,
        cache_dir=cache_folder(),
        progress=False if args.json else None,
    )
    if args.drafter == JETSPECPP and model.drafter.is_random:
        print(
            f"{JETSPECPP}: draft and adapter have random weights, so hardly any draft is accepted; "
            "the text is the target's own",
            file=sys.stderr,
        )
    return model


def drafting_from(args: argparse.Namespace, *, keep_trace: bool = False) -> DraftingConfig | None:
    """How `jetspec++` drafts, options left out at their defaults; None for other drafters.

    `auto` and folders keep their own defaults (None) if no option is given.

    Raises:
        ValueError: an option that another drafter does not have, or a bad value.
    """
    given = {option: value for option in _JETSPECPP_OPTIONS if (value := getattr(args, option)) is not None}
    if args.drafter in OTHER_DRAFTERS:
        if given:
            raise ValueError(
                f"{_JETSPECPP_OPTIONS[next(iter(given))]} is for --drafter {JETSPECPP}, not {args.drafter}"
            )
        return None
    given.pop("draft_device", None)
    if args.drafter != JETSPECPP and not given and not keep_trace:
        return None
    if "refine" in given:
        given["refine"] = RefineConfig.parse(given["refine"])
    return DraftingConfig(keep_trace=keep_trace, **given)


def draft_device_from(args: argparse.Namespace) -> jax.Device | None:
    """The device to draft on while the target verifies; None drafts on the target's.

    Raises:
        ValueError: no such device, or nothing is drafted ahead.
    """
    if args.draft_device is None:
        return None
    if args.num_outcomes == 0:
        raise ValueError("--draft-device drafts while the target verifies, but --outcomes 0 prepares nothing ahead")
    devices = jax.devices()
    if 0 <= args.draft_device < len(devices):
        return devices[args.draft_device]
    count = f"{len(devices)} {devices[0].platform} device{'s' if len(devices) > 1 else ''}"
    hint = "; XLA_FLAGS=--xla_force_host_platform_device_count=2 gives a second one"
    raise ValueError(
        f"--draft-device {args.draft_device}: there {'are' if len(devices) > 1 else 'is'} {count}, counted from 0"
        + (hint if devices[0].platform == "cpu" and len(devices) == 1 else "")
    )


def params_from(args: argparse.Namespace) -> SamplingParams:
    """Sampling options of an invocation."""
    return SamplingParams(logit_bias=dict(args.logit_bias), **{name: getattr(args, name) for name in _SAMPLING})


def prompts_from(args: argparse.Namespace, *, samples: Sequence[str] = ()) -> tuple[list[Any], dict[str, Any]]:
    """Prompts (chats unless `--raw`) and chat template arguments.

    Args:
        args: of the invocation.
        samples: what to take if it brings no prompt, neither as an argument nor in a file nor on stdin.

    Raises:
        ValueError: no prompt, or options that contradict each other.
    """
    texts = list(args.prompt)
    if args.prompt_file is not None:
        texts += _read_prompts(args.prompt_file)
    if not texts and not sys.stdin.isatty():
        texts = [text for text in [sys.stdin.read()] if text.strip() or not samples]
    texts = texts or list(samples)
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
