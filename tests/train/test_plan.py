"""Plans against numbers computed by hand."""

import pytest

from train.plan import adapter_plan, answer_bytes, draft_plan, layer_weights, plan, sizes, target_config
from train.presets import preset

# Qwen3-8B: q and o 4096 x 4096, k and v 4096 x 1024, MLP 3 x 4096 x 12288.
LAYER = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 12288
SIZE, ANCHORS, ROWS = 3072, 512, 16


def test_sizes_are_the_papers():
    found = sizes(preset("qwen3-8b"))
    assert (found.draft, found.adapter) == (1_048_626_432, 2_315_357_184)
    assert found.target == 36 * (LAYER + 2 * 4096 + 2 * 128) + 2 * 151_936 * 4096 + 4096


def test_layer_weights():
    assert layer_weights(target_config(preset("qwen3-8b")).shape) == LAYER == 192_937_984


def test_draft_flops_of_a_step():
    rows = ANCHORS * ROWS
    per_row = 2 * LAYER + 4 * 4096 * (SIZE + ROWS)
    expected = 36 * (2 * LAYER * SIZE + 2 * 4096 * SIZE**2)  # target
    expected += 3 * (2 * 5 * 4096**2 + 5 * 4 * 1024 * 4096) * SIZE  # context
    expected += 4 * 5 * per_row * rows  # five layers, rematerialised
    expected += 6 * 4096 * 151_936 * rows  # head
    assert draft_plan(preset("qwen3-8b"), devices=8).flops == pytest.approx(64 * expected, rel=1e-12)


def test_adapter_flops_of_a_step():
    rows = 128 * ROWS
    per_row = 2 * LAYER + 4 * 4096 * (SIZE + ROWS)
    context = 2 * LAYER * SIZE + 2 * 4096 * SIZE**2
    expected = 36 * context + 4 * 12 * (context + per_row * rows) + 2 * 2 * per_row * rows + 6 * 4096 * 151_936 * rows
    assert adapter_plan(preset("qwen3-8b"), devices=8).flops == pytest.approx(64 * expected, rel=1e-12)


def test_memory_of_a_device():
    memory = draft_plan(preset("qwen3-8b"), devices=64).memory  # one sequence each
    weights = 1_048_626_432
    assert memory["master weights"] == memory["gradients"] == 4 * weights
    assert (memory["optimizer"], memory["compute copy"]) == (8 * weights, 2 * weights)
    assert memory["attention scores"] == 6 * 32 * ANCHORS * ROWS * (SIZE + ROWS) * 5
    assert memory["head"] == 3 * 4 * ANCHORS * ROWS * 151_936 / 64
    assert memory["states"] == 2 * 7 * 4096 * SIZE


def test_time_and_amount():
    stage = draft_plan(preset("qwen3-8b"), devices=8)
    assert (stage.num_steps, stage.num_sequences) == (75_000, 4_800_000)
    assert stage.epochs == pytest.approx(4_800_000 / 776_000)
    assert stage.seconds(8, 500.0) == pytest.approx(75_000 * stage.flops / 4e15)
    assert answer_bytes(preset("qwen3-8b")) == 800_000 * 4 * 3072


@pytest.mark.parametrize("name", ["smollm2-135m", "tiny"])
def test_other_targets_are_read_from_their_checkpoints(name):
    assert f"{name}: target " in plan(preset(name), devices=2)


def test_refuses_what_cannot_be_split():
    with pytest.raises(ValueError, match="global_batch 64 cannot be split over 5 devices"):
        plan(preset("qwen3-8b"), devices=5)
    with pytest.raises(ValueError, match=r"devices=8 and tflops=0.0 must be positive"):
        plan(preset("qwen3-8b"), tflops=0.0)
