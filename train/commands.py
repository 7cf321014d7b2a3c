"""What the stages of `python -m train` do: arguments in, one line or table out. Heavy imports wait for their stage."""

import argparse
import json
from typing import Any

from train.presets import Preset


def collect(preset: Preset, arguments: argparse.Namespace) -> None:
    """`prompts`."""
    from train.prompts.prompt import read_prompts

    recipe = _recipe(preset, arguments)
    given = None if arguments.prompts is None else read_prompts(arguments.prompts)
    kept = recipe.make_prompts() if given is None else recipe.keep_prompts(given)
    print(f"{len(kept.token_ids)} prompts in {recipe.folders.prompts}")


def answer(preset: Preset, arguments: argparse.Namespace) -> None:
    """`data`."""
    recipe = _recipe(preset, arguments)
    if arguments.prompts is not None or not recipe.folders.prompts.exists():
        collect(preset, arguments)
    report = recipe.make_data(max_seconds=arguments.max_seconds)
    print(
        f"{report.num_records} answers, {report.num_tokens} tokens in {report.seconds:.0f} s: "
        f"{report.tokens_per_second:.0f} tokens/s, in {recipe.folders.answers}"
    )


def train_draft(preset: Preset, arguments: argparse.Namespace) -> None:
    """`draft`."""
    _initialize(arguments)
    recipe = _recipe(preset, arguments)
    options = {"start_from": arguments.start_from, "max_seconds": arguments.max_seconds}
    _report(recipe.train_draft(name=arguments.name or "draft", **options))


def train_adapter(preset: Preset, arguments: argparse.Namespace) -> None:
    """`adapter`."""
    _initialize(arguments)
    recipe = _recipe(preset, arguments)
    options = {"start_from": arguments.start_from, "max_seconds": arguments.max_seconds}
    _report(recipe.train_adapter(name=arguments.name or "adapter", **options))


def export(preset: Preset, arguments: argparse.Namespace) -> None:
    """`export`."""
    recipe = _recipe(preset, arguments)
    recipe.export_checkpoints(storage=arguments.storage)
    print(f"drafter in {recipe.folders.drafter}")


def calibrate(preset: Preset, arguments: argparse.Namespace) -> None:
    """`calibrate`."""
    from train.assess import calibrate_drafter
    from train.evaluate import calibration_points

    points = _points(arguments) or calibration_points()
    entries = calibrate_drafter(
        _recipe(preset, arguments),
        points,
        drafter=arguments.drafter,
        num_prompts=arguments.num_prompts,
        max_new_tokens=arguments.max_new_tokens,
        batch_size=arguments.batch_size,
    )
    print(f"{len(points)} points calibrated, {len(entries)} in the file")


def evaluate(preset: Preset, arguments: argparse.Namespace) -> None:
    """`evaluate`."""
    from rich.console import Console

    from train.acceptance_table import acceptance_table
    from train.assess import evaluate_drafter, evaluation_prompts
    from train.evaluate import standard_points

    recipe = _recipe(preset, arguments)
    sets = evaluation_prompts(
        recipe, arguments.sets.split(","), path=arguments.prompts, num_prompts=arguments.num_prompts
    )
    record = evaluate_drafter(
        recipe,
        sets,
        _points(arguments) or standard_points(),
        arguments.out,
        drafter=arguments.drafter,
        max_new_tokens=arguments.max_new_tokens,
        batch_size=arguments.batch_size,
    )
    Console().print(acceptance_table(record))
    print(f"record in {arguments.out}")


def show_plan(preset: Preset, arguments: argparse.Namespace) -> None:
    """`plan`."""
    from train.plan import plan

    print(plan(preset, devices=arguments.devices, tflops=arguments.tflops))


def _recipe(preset: Preset, arguments: argparse.Namespace) -> Any:
    from train.stages import Recipe

    return Recipe(preset, arguments.folder)


def _points(arguments: argparse.Namespace) -> list[Any]:
    from train.evaluate import EvaluationPoint

    return [] if arguments.points is None else [EvaluationPoint.parse(name) for name in arguments.points.split(",")]


def _initialize(arguments: argparse.Namespace) -> None:
    from train.devices import initialize_distributed

    initialize_distributed(arguments.coordinator, arguments.num_processes, arguments.process_id)


def _report(result: Any) -> None:
    numbers = {name: round(value, 4) for name, value in result.metrics.items()}
    print(json.dumps({"step": result.step, "best_step": result.best_step, "stopped_by": result.stopped_by, **numbers}))
