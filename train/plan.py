"""What a preset takes, before anything is bought: parameters, memory, FLOPs, time and disk, by arithmetic.

Letters: D width, V vocabulary, N heads and K key heads of H, S tokens a sequence (`max_len`), A anchors of T rows, so
R = A T block rows a sequence; M taps; b sequences a device and step.

FLOPs of a sequence. A product with a weight of P elements is 2 P a row forward and twice that backward (for the row and
for the weight); rematerialisation adds one forward. Frozen weights have no weight gradient.
* target, forward only: 2 P_layers S + 2 L N H S² (causal attention)
* draft: context 3 (2 M D² + 4 K H D per layer) S; rows 3 (2 P_layer + 4 N H (S + T)) R per layer, 4 with remat
* adapter: the same per row, and its layers run over the context too: 3 (2 P_layer S + 2 N H S²) per layer
* decoder (target layers above the deepest tap), on block rows only: 2 (2 P_layer + 4 N H (S + T)) R per layer
* head: 3 x 2 D V R (teacher, student, gradient of the student's states)

Memory of a device, every device holding all weights (data parallelism):
* target: 2 bytes a parameter; master weights 4, AdamW moments 8, gradients 4, compute copy 2 bytes each
* activations, 2 bytes each: taps, final states and embeddings (M + 2) D S b; per layer that is held for the backward
  pass 7 D + 2 N H + 2 K H + 3 F a row (draft: R rows; adapter: S + R rows)
* attention scores: N R (S + T) b per held layer, 6 bytes each (exponentials in fp32, weights in bf16)
* head: 3 chunks of fp32 logits, R V b / num_chunks each
Layers held: all; with remat the adapter holds one module (the draft is rematerialised as a whole, so it holds all of
its layers when the backward pass reaches it). What the compiler adds (fusion, copies, fragmentation) is not counted;
keep a fifth free.
"""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jetspec_jax.checkpoints.gguf import open_gguf
from jetspec_jax.checkpoints.gguf_config import hf_config_from_gguf
from jetspec_jax.checkpoints.hf_config import read_hf_config, target_config_from_hf
from jetspec_jax.checkpoints.resolve import resolve
from jetspec_jax.config import RopeConfig, TargetConfig, TransformerShape
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.target import Target
from train.presets import Preset, Schedule
from train.tiny import TARGET, tiny_target_folder

# Targets whose plan needs no download: sizes as their config.json has them.
KNOWN_TARGETS = {
    "Qwen/Qwen3-8B": {
        "model_type": "qwen3",
        "shape": TransformerShape(
            hidden_size=4096,
            intermediate_size=12288,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            rms_norm_eps=1e-6,
            qk_norm=True,
        ),
        "num_layers": 36,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "layer_types": ("full_attention",) * 36,
        "ropes": (("full_attention", RopeConfig(theta=1e6)),),
        "tie_word_embeddings": False,
        "taps": (1, 9, 17, 25, 33),
        "eos_token_ids": (151_645,),
    }
}
BYTES_PER_SCORE = 6


@dataclass(frozen=True)
class Sizes:
    """Parameters of the models of a preset."""

    target: int
    draft: int
    adapter: int


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """What one stage takes.

    Attributes:
        flops: of a step, all devices together.
        memory: bytes of a device, by what they hold.
        num_steps, num_sequences: of the stage; sequences over all steps.
        epochs: over the records that are not held out.
    """

    flops: int
    memory: dict[str, float]
    num_steps: int
    num_sequences: int
    epochs: float

    @property
    def total_memory(self) -> float:
        """Bytes of a device."""
        return sum(self.memory.values())

    def seconds(self, devices: int, tflops: float) -> float:
        """Of the steps alone, at 10^12 FLOP/s achieved on every device."""
        return self.num_steps * self.flops / (devices * tflops * 1e12)


def target_config(preset: Preset) -> TargetConfig:
    """Config of a preset's target: known here, or read from its checkpoint (no weights are read).

    Raises:
        ValueError: neither.
    """
    return _config(preset.target, preset.taps)


@cache
def _config(target: str, taps: tuple[int, ...] | None) -> TargetConfig:
    if target in KNOWN_TARGETS:
        fields = KNOWN_TARGETS[target]
        return TargetConfig(**fields if taps is None else fields | {"taps": taps})
    if target == TARGET:
        with tempfile.TemporaryDirectory() as folder:
            return target_config_from_hf(read_hf_config(tiny_target_folder(Path(folder))), taps=taps)
    checkpoint = resolve(target)
    if checkpoint.kind == "gguf":
        hf_config = hf_config_from_gguf(open_gguf(checkpoint.path))
    else:
        hf_config = read_hf_config(checkpoint.path)
    return target_config_from_hf(hf_config, taps=taps)


def sizes(preset: Preset) -> Sizes:
    """Parameters of target, draft and adapter; nothing is allocated."""
    target = target_config(preset)
    draft, adapter = preset.draft.config_for(target), preset.adapter.config_for(target)
    return Sizes(
        target=_count(lambda rngs: Target(target, dtype=jnp.bfloat16, rngs=rngs)),
        draft=_count(lambda rngs: Draft(draft, dtype=jnp.float32, rngs=rngs)),
        adapter=_count(lambda rngs: Adapter.random(adapter, dtype=jnp.float32, rngs=rngs)),
    )


def _count(make: Any) -> int:
    module = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module)))


def layer_weights(shape: TransformerShape) -> int:
    """Elements of the matrices of one decoder layer."""
    attention = shape.hidden_size * shape.head_dim * (2 * shape.num_heads + 2 * shape.num_kv_heads)
    return attention + 3 * shape.hidden_size * shape.intermediate_size


def draft_plan(preset: Preset, *, devices: int) -> StagePlan:
    """The draft's training; formulas in the module docstring."""
    target, stage = target_config(preset), preset.draft
    config, objective = stage.config_for(target), stage.objective
    size, num_rows, row_flops = _rows(target, config.shape, stage.schedule, objective.blocks)
    width, kv = target.shape.hidden_size, config.shape.num_kv_heads * config.shape.head_dim
    context = 3 * (2 * len(target.taps) * width**2 + 4 * kv * width * config.num_layers) * size
    rows = (4 if objective.remat else 3) * config.num_layers * row_flops * num_rows
    flops = _target_flops(target, size) + context + rows + _head_flops(target, num_rows)
    return _stage_plan(
        preset, stage.schedule, flops, sizes(preset).draft, devices, objective, config.num_layers, num_rows, num_rows
    )


def adapter_plan(preset: Preset, *, devices: int) -> StagePlan:
    """The adapter's training; formulas in the module docstring."""
    target, stage = target_config(preset), preset.adapter
    config, objective = stage.config_for(target), stage.objective
    size, num_rows, row_flops = _rows(target, config.shape, stage.schedule, objective.blocks)
    context = 2 * layer_weights(config.shape) * size + _causal_flops(config.shape, size)
    layers = (4 if objective.remat else 3) * config.num_layers * (context + row_flops * num_rows)
    decoder = 2 * (target.num_layers - 1 - target.taps[-1]) * row_flops * num_rows
    flops = _target_flops(target, size) + layers + decoder + _head_flops(target, num_rows)
    held = max(config.layers_per_module) if objective.remat else config.num_layers
    return _stage_plan(
        preset, stage.schedule, flops, sizes(preset).adapter, devices, objective, held, num_rows, num_rows + size
    )


def _rows(target: TargetConfig, shape: TransformerShape, schedule: Schedule, blocks: Any) -> tuple[int, int, int]:
    """S, R, and forward FLOPs of a block row in one layer."""
    size = min(schedule.max_len, target.max_position_embeddings)
    attention = 4 * shape.num_heads * shape.head_dim * (size + blocks.num_rows)
    return size, blocks.num_anchors * blocks.num_rows, 2 * layer_weights(shape) + attention


def _causal_flops(shape: TransformerShape, size: int) -> int:
    return 2 * shape.num_heads * shape.head_dim * size**2


def _target_flops(target: TargetConfig, size: int) -> int:
    return target.num_layers * (2 * layer_weights(target.shape) * size + _causal_flops(target.shape, size))


def _head_flops(target: TargetConfig, num_rows: int) -> int:
    return 3 * 2 * target.shape.hidden_size * target.vocab_size * num_rows


def _stage_plan(
    preset: Preset,
    schedule: Schedule,
    flops: int,
    num_params: int,
    devices: int,
    objective: Any,
    num_held: int,
    num_rows: int,
    num_held_rows: int,
) -> StagePlan:
    if schedule.global_batch % devices:
        raise ValueError(f"global_batch {schedule.global_batch} cannot be split over {devices} devices")
    target, batch = target_config(preset), schedule.global_batch // devices
    shape, size = target.shape, min(schedule.max_len, target.max_position_embeddings)
    heads, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    saved = 7 * shape.hidden_size + 2 * heads + 2 * kv + 3 * shape.intermediate_size
    scores = shape.num_heads * num_rows * (size + objective.blocks.num_rows)
    memory = {
        "target": 2.0 * sizes(preset).target,
        "master weights": 4.0 * num_params,
        "optimizer": 8.0 * num_params,
        "gradients": 4.0 * num_params,
        "compute copy": 2.0 * num_params,
        "states": 2.0 * (len(target.taps) + 2) * shape.hidden_size * size * batch,
        "activations": 2.0 * saved * num_held_rows * num_held * batch,
        "attention scores": float(BYTES_PER_SCORE) * scores * num_held * batch,
        "head": 3 * 4.0 * num_rows * target.vocab_size * batch / objective.num_chunks,
    }
    num_sequences = schedule.num_steps * schedule.global_batch
    epochs = num_sequences / (preset.num_prompts - preset.held_out)
    return StagePlan(
        flops=flops * schedule.global_batch,
        memory=memory,
        num_steps=schedule.num_steps,
        num_sequences=num_sequences,
        epochs=epochs,
    )


def answer_bytes(preset: Preset) -> float:
    """Disk for the answers, before compression: every record as long as the longest one."""
    engine = preset.data.engine
    width = 2 if target_config(preset).vocab_size <= 1 << 16 else 4
    return float(preset.num_prompts) * width * (engine.max_prompt_len + engine.max_new_tokens)


def plan(preset: Preset, *, devices: int = 8, tflops: float = 300.0) -> str:
    """Text for people.

    Args:
        preset: any; only the config of its target is read.
        devices: of the run.
        tflops: 10^12 FLOP/s that each device achieves; dense bf16 peaks are 312 (A100), 989 (H100, H200).

    Raises:
        ValueError: the batch cannot be split over the devices, or numbers that are not positive.
    """
    if devices < 1 or not tflops > 0:
        raise ValueError(f"devices={devices} and tflops={tflops} must be positive")
    counts, lines = sizes(preset), [f"{preset.name}: target {preset.target}"]
    lines += [f"  {name:<8}{count:>16,} parameters" for name, count in vars(counts).items()]
    for name, stage in (
        ("draft", draft_plan(preset, devices=devices)),
        ("adapter", adapter_plan(preset, devices=devices)),
    ):
        hours = stage.seconds(devices, tflops) / 3600
        per_device = stage.num_sequences // stage.num_steps // devices
        lines += [
            f"{name}: {stage.num_steps:,} steps, {stage.num_sequences:,} sequences ({stage.epochs:.1f} epochs)",
            f"  compute: {stage.flops:.2e} FLOP a step; {hours:.2f} h on {devices} devices at {tflops:g} TFLOP/s each "
            f"({hours * devices:.1f} device hours)",
            f"  memory of a device with {per_device} sequences: {_size(stage.total_memory)}",
            *(f"    {part:<18}{_size(num_bytes):>10}" for part, num_bytes in stage.memory.items()),
        ]
    lines.append(f"answers on disk: at most {_size(answer_bytes(preset))} for {preset.num_prompts:,} records")
    lines.append("Estimates: see train/plan.py for the formulas; answering and evaluations take time of their own.")
    return "\n".join(lines)


def _size(num_bytes: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while num_bytes >= 1000 and len(units) > 1:
        num_bytes /= 1000
        units.pop(0)
    return f"{num_bytes:.1f} {units[0]}"
