"""Drafter folders: what is saved is what is loaded, and anything else is refused by name."""

import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jetspec_jax.checkpoints.drafter_files import load_drafter
from jetspec_jax.checkpoints.inspect_drafter import inspect_drafter
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.testing import tiny_config, tiny_target

TARGET = tiny_config()


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_round_trip_is_bit_exact(parts_of, save, named, weights_of, tmp_path, storage):
    draft, adapter = parts_of(jnp.dtype(storage))
    save(tmp_path / "d", draft, adapter, None, storage=storage)
    loaded = load_drafter(tmp_path / "d", TARGET, dtype=storage)
    assert loaded.config == draft.config
    assert loaded.predictor.adapter.config == adapter.config
    expected, found = named(draft=draft, adapter=adapter), weights_of(loaded)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == jnp.dtype(storage)
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert not loaded.is_random


def test_stores_the_public_names(saved):
    layer = ["input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm"]
    layer += [f"self_attn.{name}" for name in ("k_norm", "k_proj", "o_proj", "q_norm", "q_proj", "v_proj")]
    expected = {f"layers.{i}.{name}.weight" for i in (0, 1) for name in layer}
    assert set(load_file(saved / "draft/model.safetensors")) == expected | {
        "fc.weight", "hidden_norm.weight", "norm.weight"
    }  # fmt: skip
    names = set(load_file(saved / "adapter/model.safetensors"))
    assert {"modules.0.layers.0.mlp.up_proj.weight", "modules.1.layers.1.self_attn.v_proj.weight"} < names


@pytest.fixture
def quick_compilation():
    """A large program that runs for a moment."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.usefixtures("quick_compilation")
def test_drafts_the_same_tokens_before_and_after(parts, saved):
    """Draft and adapter both run, and the text does not hide what they propose."""
    drafting = DraftingConfig(num_drafts=4, num_outcomes=0, keep_trace=True)
    loaded = load_drafter(saved, TARGET, dtype="float32", drafting=drafting)
    plain = LanguageModel(tiny_target(TARGET), drafter=None)
    proposed = []
    for drafter in (JetSpecPP(*parts, drafting=drafting), loaded):
        chunks = plain.with_drafter(drafter).stream([5, 6, 7], max_new_tokens=12)
        proposed.append([(*chunk.trace.passes, chunk.trace.proxies) for chunk in chunks if chunk.trace is not None])
    assert proposed[0] == proposed[1]
    assert len(proposed[0]) > 3


def test_a_calibration_is_the_default_rule(entry, saved):
    drafter = load_drafter(saved, TARGET, dtype="float32")
    assert drafter.drafting == DraftingConfig(outcome_rule="calibrated", decision_temperature=0.125)
    np.testing.assert_array_equal(drafter.calibration.coefficients, np.array(entry.coefficients, np.float32))
    told = DraftingConfig(outcome_rule="uniform", decision_temperature=0.5)
    assert load_drafter(saved, TARGET, dtype="float32", drafting=told).drafting == told
    assert load_drafter(saved, TARGET, dtype="float32", drafting=PLAIN_PASS).drafting == PLAIN_PASS


def test_takes_the_nearest_calibration(save, entry, parts, tmp_path):
    entries = [entry, replace(entry, refine="J3-R3", decision_temperature=0.5), replace(entry, temperature=1.0)]
    save(tmp_path / "d", *parts, entries)
    drafting = DraftingConfig(refine=RefineConfig.parse("J3-R3"))
    assert load_drafter(tmp_path / "d", TARGET, dtype="float32", drafting=drafting).drafting.decision_temperature == 0.5


def test_a_draft_alone_drafts_on_the_critical_path(save, parts, tmp_path):
    save(tmp_path / "d", parts[0], None, None)
    drafter = load_drafter(tmp_path / "d", TARGET, dtype="float32")
    assert (drafter.drafting, drafter.predictor) == (PLAIN_PASS, None)
    with pytest.raises(ValueError, match="J1-R1 with num_outcomes=4 needs an adapter"):
        load_drafter(tmp_path / "d", TARGET, dtype="float32", drafting=DraftingConfig())


def test_lists_every_tensor_that_does_not_fit(folder):
    """C25."""
    path = folder / "draft/model.safetensors"
    tensors = load_file(path)
    del tensors["hidden_norm.weight"]
    tensors["layers.1.mlp.up_proj.weight"] = np.zeros((3, 32), np.float32)
    tensors["layers.7.mlp.up_proj.weight"] = np.zeros((64, 32), np.float32)
    tensors["fc.weight.scale"] = np.zeros(32, np.float32)
    save_file(tensors, path)
    expected = [
        "missing: hidden_norm.weight [32]",
        "misshaped: layers.1.mlp.up_proj.weight: expected [64, 32], found [3, 32]",
        "unexpected: fc.weight.scale [32]",
        "unexpected: layers.7.mlp.up_proj.weight [64, 32]",
    ]
    with pytest.raises(CheckpointError) as error:
        load_drafter(folder, TARGET, dtype="float32")
    assert sorted(line.strip() for line in str(error.value).splitlines()[1:]) == sorted(expected)
    assert sorted(inspect_drafter(folder).problems) == sorted(f"draft: {line}" for line in expected)


@pytest.mark.parametrize("part", ["draft", "adapter"])
def test_refuses_truncated_files(folder, part):
    """C26."""
    path = folder / part / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=f"expected {len(data)} bytes, found {len(data) - 1}"):
        load_drafter(folder, TARGET, dtype="float32")


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        pytest.param("draft", "no draft/config.json", id="draft"),
        pytest.param("draft/config.json", "no draft/config.json", id="draft-config"),
        pytest.param("draft/model.safetensors", "no draft/model.safetensors", id="draft-weights"),
        pytest.param("adapter", "'adapter' is missing: has_adapter=True", id="adapter"),
        pytest.param("adapter/model.safetensors", "no adapter/model.safetensors", id="adapter-weights"),
    ],
)
def test_refuses_a_folder_that_lost_something(folder, lost, message):
    path = folder / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=message):
        load_drafter(folder, TARGET, dtype="float32")


def test_says_where_it_looked(folder, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"drafter .*none.* not found: .*no folder .*; not a Hugging Face id"):
        load_drafter(tmp_path / "none", TARGET, dtype="float32")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="must go through `jetspec convert` first"):
        load_drafter(tmp_path, TARGET, dtype="float32")


def test_loads_by_hub_id(saved, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, *, allow_patterns, local_files_only):
        asked.append((name, allow_patterns))
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_drafter("someone/drafter", TARGET, dtype="float32").predictor is not None
    assert asked == [("someone/drafter", ["draft/*", "adapter/*", "calibration.json"])]
