"""The preset that trains on two CPU cores in under a minute: a random two-layer target over bytes.

Its text is noise, but every stage is the real one: a checkpoint folder with tokenizer and chat template, answers by the
engine, both trainings, τ by decoding. The target's distributions are sharp, so that there is something to predict.
"""

import random
from pathlib import Path

from jetspec_jax.testing.checkpoint import write_tiny_checkpoint
from train.adapter_objective import AdapterObjective
from train.blocks import BlockConfig
from train.data import DataRecipe
from train.draft_objective import DraftObjective
from train.engine import EngineConfig
from train.measure import MeasureConfig
from train.optimizer import OptimizerConfig
from train.presets import AdapterStage, DraftStage, Preset, Schedule
from train.prompts.prompt import Prompt

TARGET = "tiny"
NUM_PROMPTS = 512
SHARPNESS = 8.0
WEIGHTS = 6  # a seed whose answers end now and then and repeat themselves little
WORDS = "red blue green small large old new cat dog bird tree house river stone runs sees finds likes"


def tiny() -> Preset:
    """Less than a minute on CPU, compilation included."""
    draft, adapter = (
        Schedule(num_steps=num_steps, global_batch=16, max_len=128, eval_every=20, save_every=20, log_every=5)
        for num_steps in (80, 60)
    )
    return Preset(
        name="tiny",
        target=TARGET,
        num_prompts=NUM_PROMPTS,
        mask_token_id=258,  # a row of the embedding without a token
        data=DataRecipe(
            engine=EngineConfig(
                num_slots=64, max_prompt_len=64, max_new_tokens=63, steps_per_call=16, prompts_per_call=32
            ),
            temperatures=(0.0, 0.8),
        ),
        measure=MeasureConfig(num_prompts=16, max_new_tokens=48, batch_size=16, num_drafts=7),
        draft=DraftStage(
            schedule=draft,
            optimizer=OptimizerConfig(peak_lr=6e-3, total_steps=draft.num_steps),
            objective=DraftObjective(
                blocks=BlockConfig(num_anchors=16, num_rows=8), num_chunks=1, compute_dtype="float32"
            ),
            num_layers=1,
        ),
        adapter=AdapterStage(
            schedule=adapter,
            optimizer=OptimizerConfig(peak_lr=3e-3, total_steps=adapter.num_steps),
            objective=AdapterObjective(
                blocks=BlockConfig(num_anchors=8, num_rows=8), num_chunks=1, compute_dtype="float32"
            ),
        ),
        held_out=32,
    )


def tiny_prompts(num: int = NUM_PROMPTS, seed: int = 0) -> list[Prompt]:
    """Short sentences of common words."""
    rng = random.Random(seed)
    return [Prompt("tiny", " ".join(rng.choices(WORDS.split(), k=rng.randint(1, 4)))) for _ in range(num)]


def tiny_target_folder(root: Path) -> Path:
    """The checkpoint of the tiny target under a run's folder, written if it is not there."""
    folder = root / "target"
    return folder if folder.exists() else write_tiny_checkpoint(folder, seed=WEIGHTS, sharpness=SHARPNESS)
