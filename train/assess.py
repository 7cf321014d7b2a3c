"""What becomes of a trained drafter: its calibration (`python -m train calibrate`) and τ over prompt sets (`evaluate`).

Held-out prompts of the run serve three ends: the first ones measure τ while training and make the set `held-out`, the
last ones calibrate. Let `Preset.held_out` be as large as the two together.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jetspec_jax.checkpoints.calibration_file import CalibrationEntry, load_calibrations
from jetspec_jax.checkpoints.drafter_files import CALIBRATION, load_drafter
from jetspec_jax.checkpoints.resolve import resolve_drafter
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.evaluation.benchmarks import INSTALLABLE, load_benchmark
from jetspec_jax.language_model import LanguageModel
from train.calibrate import calibrate_points
from train.evaluate import EvaluationPoint, calibrated_drafting, evaluate_sets
from train.prompt_set import PromptSet
from train.stages import Recipe

HELD_OUT = "held-out"
SETS = (*INSTALLABLE, HELD_OUT)

Prompts = dict[str, list[list[int]]]


def evaluate_drafter(
    recipe: Recipe,
    sets: Prompts,
    points: Sequence[EvaluationPoint],
    path: Path,
    *,
    drafter: str | Path | None = None,
    max_new_tokens: int = 512,
    batch_size: int = 128,
    note: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Measures a drafter; see `evaluate_sets` for the record. Its calibration is used where it drafts ahead.

    Args:
        recipe: gives target, tokenizer and the drafts of a round.
        sets: see `evaluation_prompts`.
        points, path, max_new_tokens, batch_size, note: as for `evaluate_sets`.
        drafter: folder or Hugging Face id; None takes the run's.
    """
    folder, trained = load_trained(recipe, drafter)
    _check_points(trained, points)
    entries = load_calibrations(folder / CALIBRATION) if (folder / CALIBRATION).exists() else []
    drafting = calibrated_drafting(trained, entries)
    options = {"max_new_tokens": max_new_tokens, "batch_size": batch_size, "note": note}
    return evaluate_sets(plain_model(recipe), drafting, sets, points, path, **options)


def calibrate_drafter(
    recipe: Recipe,
    points: Sequence[EvaluationPoint],
    *,
    drafter: str | Path | None = None,
    num_prompts: int = 256,
    max_new_tokens: int = 256,
    batch_size: int = 64,
    note: Callable[[str], Any] = print,
) -> list[CalibrationEntry]:
    """Calibrates a drafter on held-out prompts of the run and writes `calibration.json` beside its weights.

    Args:
        recipe: gives target, tokenizer, prompts and the drafts of a round.
        points: each with foresight (B of at least 1).
        drafter: folder; None takes the run's.
        num_prompts: at most; the last ones that are held out.
        max_new_tokens, batch_size, note: as for `calibrate_points`.

    Raises:
        ValueError: a point without foresight, or a drafter without adapter.
    """
    if critical := [point.name for point in points if not point.num_outcomes]:
        raise ValueError(f"nothing to calibrate on the critical path: {', '.join(critical)}; give points with B=")
    if plain := [point.name for point in points if point.temperature and not point.couple_noise]:
        raise ValueError(f"calibrations are for coupled noise, not for {', '.join(plain)}")
    folder, trained = load_trained(recipe, drafter)
    _check_points(trained, points)
    prompts = recipe.held_out()[-num_prompts:]
    options = {"max_new_tokens": max_new_tokens, "batch_size": min(batch_size, len(prompts)), "note": note}
    return calibrate_points(plain_model(recipe), trained, points, prompts, folder / CALIBRATION, **options)


def evaluation_prompts(
    recipe: Recipe, names: Sequence[str] = INSTALLABLE, *, path: Path | None = None, num_prompts: int = 64
) -> Prompts:
    """Token ids of evaluation prompts, chat template applied, by set.

    Args:
        recipe: gives tokenizer and held-out prompts.
        names: of `SETS`; not looked at if there is a `path`.
        path: a `PromptSet` whose sources are the names of the sets.
        num_prompts: of each set; `path` and `held-out` may have fewer.

    Raises:
        ValueError: an unknown set, or one with fewer prompts.
    """
    if path is not None:
        sets: Prompts = {}
        prompts = PromptSet.load(path)
        for source, ids in zip(prompts.sources, prompts.token_ids, strict=True):
            sets.setdefault(source, []).append(ids)
        return {name: group[:num_prompts] for name, group in sets.items()}
    if unknown := [name for name in names if name not in SETS]:
        raise ValueError(f"unknown sets {', '.join(unknown)}; known: {', '.join(SETS)}")
    return {name: _set(recipe, name, num_prompts) for name in names}


def _set(recipe: Recipe, name: str, num_prompts: int) -> list[list[int]]:
    if name == HELD_OUT:
        return recipe.held_out()[:num_prompts]
    texts = load_benchmark(name, num_prompts=num_prompts).prompts
    return [recipe.tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in texts]


def load_trained(recipe: Recipe, drafter: str | Path | None = None) -> tuple[Path, JetSpecPP]:
    """A drafter's folder and its weights with the budget of the preset: one pass on the critical path, uncalibrated."""
    folder = resolve_drafter(recipe.folders.drafter if drafter is None else drafter)
    drafting = DraftingConfig(
        num_drafts=recipe.preset.measure.num_drafts, refine=RefineConfig.parse("J0"), num_outcomes=0
    )
    return folder, load_drafter(folder, recipe.target.config, dtype=recipe.target.dtype, drafting=drafting)


def plain_model(recipe: Recipe) -> LanguageModel:
    """The target alone."""
    return LanguageModel(recipe.target, recipe.tokenizer, drafter="autoregressive", progress=False)


def _check_points(drafter: JetSpecPP, points: Sequence[EvaluationPoint]) -> None:
    """Before hours of decoding."""
    if drafter.predictor is None:
        bad = [p.name for p in points if p.num_outcomes or RefineConfig.parse(p.refine).num_refreshes]
        if bad:
            raise ValueError(f"{', '.join(bad)} need an adapter, which this drafter has not; J0 and J3 do not")
