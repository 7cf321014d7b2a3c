"""`python -m train STAGE --preset NAME --folder RUN`: one command per stage of a recipe."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

from jetspec_jax.evaluation.benchmarks import INSTALLABLE
from train import commands
from train.presets import known_presets, preset
from train.run_config import RunError


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one stage; bad input is one line on stderr and exit status 1."""
    arguments = _parser().parse_args(argv)
    try:
        chosen = preset(arguments.preset)
        for assignment in arguments.set:
            chosen = with_setting(chosen, assignment)
        arguments.run(chosen, arguments)
    except (ValueError, OSError, RunError) as error:
        raise SystemExit(f"error: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m train", description=__doc__)
    stages = parser.add_subparsers(title="stages", required=True)

    prompts = _stage(stages, "prompts", commands.collect, "collect and tokenise prompts")
    data = _stage(
        stages, "data", commands.answer, "let the target answer them (collects prompts first if there are none)"
    )
    draft = _stage(stages, "draft", commands.train_draft, "train the draft")
    adapter = _stage(stages, "adapter", commands.train_adapter, "train the adapter")
    export = _stage(stages, "export", commands.export, "write the drafter folder from the best checkpoints")
    calibrate = _stage(stages, "calibrate", commands.calibrate, "fit outcome scores on held-out prompts")
    evaluate = _stage(stages, "evaluate", commands.evaluate, "measure tokens a round over sets of prompts")
    plan = _stage(stages, "plan", commands.show_plan, "print sizes, memory and time of a preset; trains nothing")

    for stage in (prompts, data):
        stage.add_argument(
            "--prompts", type=Path, help="JSON lines with source and text, instead of the preset's prompts"
        )
    for stage in (data, draft, adapter):
        stage.add_argument("--max-seconds", type=float, help="wall-clock limit of this stage")
    for stage in (draft, adapter):
        _add_training(stage)
    export.add_argument("--storage", default="bfloat16", choices=("float32", "bfloat16", "int8"))
    for stage in (calibrate, evaluate):
        stage.add_argument("--drafter", help="folder of the drafter; default: FOLDER/drafter")
        stage.add_argument("--points", metavar="NAME,NAME", help="like 'J0,J3-R3 B=4,J1-R1 B=4 T=0.7 plain'")
    _add_decoding(calibrate, num_prompts=256, max_new_tokens=256, batch_size=64)
    _add_decoding(evaluate, num_prompts=64, max_new_tokens=512, batch_size=128)
    evaluate.add_argument("--sets", default=",".join(INSTALLABLE), metavar="SET,SET", help="also held-out; %(default)s")
    evaluate.add_argument("--prompts", type=Path, help="prompts.npz whose sources are the sets, instead of --sets")
    evaluate.add_argument("--out", type=Path, required=True, help="JSON record; points that it holds already stay")
    plan.add_argument("--devices", type=int, default=8, help="%(default)s")
    plan.add_argument("--tflops", type=float, default=300.0, help="that each device achieves; %(default)s")
    return parser


def _stage(stages: Any, name: str, run: Callable[..., None], text: str) -> argparse.ArgumentParser:
    stage = stages.add_parser(name, help=text, description=text)
    stage.set_defaults(run=run)
    stage.add_argument("--preset", default="smollm2-135m", help=f"{', '.join(known_presets())}, or NAME+ABLATION")
    stage.add_argument("--folder", type=Path, default=Path("runs/train"), help="of the whole run; %(default)s")
    stage.add_argument(
        "--set", action="append", default=[], metavar="A.B=VALUE", help="replaces one field of the preset"
    )
    return stage


def _add_training(stage: argparse.ArgumentParser) -> None:
    stage.add_argument("--coordinator", help="host:port of process 0, for several hosts; 'auto' asks the cluster")
    stage.add_argument("--num-processes", type=int, help="of the run")
    stage.add_argument("--process-id", type=int, help="of this process, from 0")
    stage.add_argument("--name", help="folder under --folder for checkpoints and metrics; the stage's name")
    stage.add_argument("--start-from", type=Path, help="drafter folder whose weights training starts from")


def _add_decoding(stage: argparse.ArgumentParser, *, num_prompts: int, max_new_tokens: int, batch_size: int) -> None:
    stage.add_argument("--num-prompts", type=int, default=num_prompts, help="of each set; %(default)s")
    stage.add_argument("--max-new-tokens", type=int, default=max_new_tokens, help="%(default)s")
    stage.add_argument("--batch-size", type=int, default=batch_size, help="%(default)s")


def with_setting(config: Any, assignment: str) -> Any:
    """A dataclass with one nested field replaced: `"draft.optimizer.peak_lr=3e-4"`; values are JSON or text.

    Raises:
        ValueError: no such field, or a value its class refuses.
    """
    path, separator, value = assignment.partition("=")
    if not separator:
        raise ValueError(f"--set takes A.B=VALUE, got {assignment!r}")
    name, _, rest = path.partition(".")
    if not is_dataclass(config) or name not in {field.name for field in fields(config)}:
        known = ", ".join(field.name for field in fields(config)) if is_dataclass(config) else "nothing"
        raise ValueError(f"--set {assignment}: {type(config).__name__} has no field {name!r} (it has {known})")
    if rest:
        return replace(config, **{name: with_setting(getattr(config, name), f"{rest}={value}")})
    return replace(config, **{name: _parsed(value, get_type_hints(type(config))[name], assignment)})


def _parsed(text: str, kind: Any, assignment: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    value = tuple(value) if isinstance(value, list) else value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if (
        isinstance(kind, type) and kind is not Any
    ):  # not a Literal, a union or a tuple of something: its class checks those
        value = kind(value) if issubclass(kind, (Path, StrEnum)) else value
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"--set {assignment}: expected {kind.__name__}, got {value!r}")
    return value
