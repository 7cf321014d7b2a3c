"""Presets and ablations: all of them can be built, and mean what their names say."""

import pytest

from jetspec_jax.checkpoints.resolve import resolve
from jetspec_jax.testing import tiny_target
from jetspec_jax.text.tokenizer import load_tokenizer
from train.draft_task import DraftTask
from train.measure import Measure
from train.plan import target_config
from train.presets import ABLATIONS, known_presets, preset

NAMES = [f"{name}{ablation}" for name in known_presets() for ablation in ("", *(f"+{a}" for a in ABLATIONS))]


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_describes_models_of_its_target(name):
    chosen = preset(name)
    assert chosen.name == name
    target = target_config(chosen)
    draft, adapter = chosen.draft.config_for(target), chosen.adapter.config_for(target)
    assert draft.num_taps == len(target.taps) == len(adapter.layers_per_module)
    assert (draft.inputs == "mask") == (draft.mask_token_id is not None)
    if draft.inputs == "mask":
        assert draft.mask_token_id == chosen.mask_token_id
        assert 0 <= draft.mask_token_id < target.vocab_size
        assert draft.mask_token_id not in target.eos_token_ids


# Causal, next-token alignment, inputs, share of fully noised blocks, loss.
WHAT_ABLATIONS_TRAIN = {
    "": (True, True, "noise", 0.25, "kl"),
    "mask-inputs": (True, True, "mask", 1.0, "kl"),
    "jetspec": (True, False, "mask", 1.0, "kl"),
    "dflash-kl": (False, False, "mask", 1.0, "kl"),
    "never-fully-noised": (True, True, "noise", 0.0, "kl"),
    "fully-noised-half": (True, True, "noise", 0.5, "kl"),
    "fully-noised-only": (True, True, "noise", 1.0, "kl"),
    "sft": (True, True, "noise", 0.25, "sft"),
    "reverse-kl": (True, True, "noise", 0.25, "reverse_kl"),
    "bidirectional": (False, True, "noise", 0.25, "kl"),
}


@pytest.mark.parametrize("ablation", ["", *ABLATIONS])
def test_every_ablation_makes_a_task(ablation):
    chosen = preset(f"smollm2-135m+{ablation}" if ablation else "smollm2-135m")
    target = tiny_target()
    measure = Measure(target, [[1, 2]], (), chosen.measure)
    task = DraftTask(target, chosen.draft.config_for(target.config), chosen.draft.objective, measure)
    blocks = task.objective.blocks
    found = (task.config.causal, task.config.shift, task.config.inputs, blocks.fully_noised_share, task.objective.loss)
    assert found == WHAT_ABLATIONS_TRAIN[ablation]


def test_mask_token_of_smollm2_is_in_no_text():
    chosen = preset("smollm2-135m")
    tokenizer = load_tokenizer(resolve(chosen.target).path)
    assert tokenizer.decode([chosen.mask_token_id], skip_special_tokens=False) == "<empty_output>"
    template = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])
    assert chosen.mask_token_id not in {*template, *tokenizer.eos_token_ids}
