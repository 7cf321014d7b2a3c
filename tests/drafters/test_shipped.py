"""Trained drafters by name and by folder: shipped ones are found by what their target is, and used by default."""

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jetspec_jax
from jetspec_jax.checkpoints import shipped
from jetspec_jax.checkpoints.calibration_file import CalibrationEntry
from jetspec_jax.checkpoints.drafter_files import save_drafter
from jetspec_jax.checkpoints.hf_config import read_hf_config, target_config_from_hf
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.checkpoints.shipped import default_drafter_folder
from jetspec_jax.cli import main
from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.drafters import PLAIN_PASS, AutoregressiveDrafter, JetSpecPP, NgramDrafter, as_drafter
from jetspec_jax.drafting_config import AT_CRITICAL_PATH, ON_CPU, DraftingConfig
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import tiny_config, tiny_target, write_tiny_checkpoint

TARGET = tiny_config()
ENTRY = CalibrationEntry(
    temperature=0.0,
    refine="J1-R1",
    num_outcomes=4,
    coefficients=(0.0, 1.0, 0.0, 0.0, 0.0, 0.0),
    anchor_temperature=1.0,
    conformal_threshold=1.0,
    decision_temperature=0.125,
    num_rounds=10,
)
CALIBRATED = DraftingConfig(outcome_rule="calibrated", decision_temperature=0.125)


def save(folder: Path, target=TARGET, calibration=(ENTRY,)) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Draft(draft_config_for(target, num_layers=1, block_rows=4), dtype=jnp.float32, rngs=nnx.Rngs(0))
    config = adapter_config_for(target, layers_per_module=(1,) * len(target.taps))
    adapter = Adapter.random(config, dtype=jnp.float32, rngs=nnx.Rngs(1))
    save_drafter(folder, draft, adapter, calibration or None, target=target, target_name="tiny")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("trained") / "tiny")


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """The only place where shipped weights are looked for."""
    monkeypatch.setattr(shipped, "weights_roots", lambda: (tmp_path / "weights",))
    return tmp_path / "weights"


@pytest.fixture
def installed(root, trained) -> Path:
    """Weights for the tiny target are shipped."""
    return Path(shutil.copytree(trained, root / "tiny"))


def drafter_of(spec, target=TARGET, **options):
    return as_drafter(spec, target=target, dtype=jnp.float32, **options)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"vocab_size": 96}, id="vocabulary"),
        pytest.param({"taps": (1,)}, id="taps"),
        pytest.param({"model_type": "llama"}, id="family"),
        pytest.param({"num_kv_heads": 1}, id="heads"),
    ],
)
def test_shipped_weights_belong_to_one_target(installed, changes):
    assert default_drafter_folder(TARGET) == installed
    assert default_drafter_folder(TARGET, "tiny") == installed
    assert default_drafter_folder(TARGET, "other") is None
    assert default_drafter_folder(tiny_config(**changes)) is None
    assert isinstance(drafter_of("auto", tiny_config(**changes)), NgramDrafter)


def test_without_a_weights_folder_there_are_none(root):
    assert not root.exists()
    assert default_drafter_folder(TARGET) is None


def test_a_folder_being_written_is_not_shipped(root, trained):
    shutil.copytree(trained, root / ".tiny-partial")
    assert default_drafter_folder(TARGET) is None


def test_a_damaged_shipped_config_is_no_silent_fallback(installed):
    (installed / "draft/config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        drafter_of("auto")


def test_looks_into_the_checkout_and_the_package():
    package = Path(jetspec_jax.__file__).parent
    assert shipped.weights_roots() == (package.parent / "weights", package / "weights")


@pytest.mark.parametrize(
    ("spec", "options", "num_drafts", "drafting"),
    [
        pytest.param("auto", {}, 4, CALIBRATED, id="auto"),
        pytest.param("jetspec++", {}, 4, CALIBRATED, id="by-name"),
        pytest.param("parallel", {}, 4, PLAIN_PASS, id="one-pass"),
        pytest.param("auto", {"num_drafts": 3}, 3, replace(CALIBRATED, num_drafts=3), id="num-drafts"),
        pytest.param(
            "auto",
            {"drafting": DraftingConfig(num_outcomes=2)},
            4,
            replace(CALIBRATED, num_outcomes=2),
            id="drafting-keeps-the-calibration",
        ),
        pytest.param(
            "jetspec++",
            {"drafting": DraftingConfig(outcome_rule="uncalibrated"), "num_drafts": 2},
            2,
            DraftingConfig(num_drafts=2, outcome_rule="uncalibrated", decision_temperature=0.25),
            id="told-otherwise",
        ),
    ],
)
@pytest.mark.usefixtures("installed")
def test_shipped_weights_are_used(spec, options, num_drafts, drafting):
    drafter = drafter_of(spec, **options)
    assert isinstance(drafter, JetSpecPP)
    assert (drafter.is_random, drafter.num_drafts) == (False, num_drafts)
    assert replace(drafter.drafting, num_drafts=None) == replace(drafting, num_drafts=None)


def test_without_a_calibration_the_rule_stays(root):
    save(root / "tiny", calibration=())
    assert drafter_of("auto").drafting == DraftingConfig(outcome_rule="uncalibrated", decision_temperature=0.25)


@pytest.mark.usefixtures("root")
def test_without_shipped_weights_they_are_random():
    assert drafter_of("jetspec++").is_random
    assert drafter_of("jetspec++").with_drafting(num_outcomes=2).is_random
    assert isinstance(drafter_of("auto"), NgramDrafter)
    assert drafter_of("auto", num_drafts=3).num_drafts == 3
    assert isinstance(drafter_of("auto", num_drafts=0), AutoregressiveDrafter)
    with pytest.raises(ValueError, match="no weights for this target are shipped"):
        drafter_of("auto", drafting=DraftingConfig())


@pytest.mark.parametrize("as_spec", [str, Path])
def test_a_folder_is_a_drafter(trained, as_spec):
    drafter = drafter_of(as_spec(trained))
    assert (drafter.is_random, drafter.drafting) == (False, CALIBRATED)
    assert drafter_of(as_spec(trained), num_drafts=2).num_drafts == 2
    assert isinstance(drafter_of(as_spec(trained), num_drafts=0), AutoregressiveDrafter)
    told = DraftingConfig(num_outcomes=0, outcome_rule="uniform", decision_temperature=1.0)
    assert drafter_of(as_spec(trained), drafting=told).drafting == told


def test_a_folder_of_another_target_is_refused(trained):
    with pytest.raises(ValueError, match="vocab_size=97, the target has 96"):
        drafter_of(str(trained), tiny_config(vocab_size=96))


@pytest.mark.parametrize(
    ("spec", "options", "drafting"),
    [
        pytest.param("auto", {}, ON_CPU, id="auto"),
        pytest.param("auto", {"num_drafts": 2}, replace(ON_CPU, num_drafts=2), id="num-drafts"),
        pytest.param(
            "auto", {"drafting": AT_CRITICAL_PATH}, replace(CALIBRATED, num_outcomes=0), id="told-how-to-draft"
        ),
        pytest.param("auto", {"drafts_ahead": True}, CALIBRATED, id="drafts-on-a-second-device"),
        pytest.param("jetspec++", {}, replace(CALIBRATED, num_outcomes=0), id="by-name"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_on_a_cpu_the_default_is_one_pass_and_small_blocks(spec, options, drafting):
    drafter = drafter_of(spec, on_cpu=True, **({"drafts_ahead": False} | options))
    assert drafter.num_drafts == (drafting.num_drafts or 4)
    names = ("refine", "num_outcomes")
    assert [getattr(drafter.drafting, name) for name in names] == [getattr(drafting, name) for name in names]


@pytest.mark.usefixtures("root")
def test_on_a_cpu_without_weights_the_default_is_text_lookup():
    assert isinstance(drafter_of("auto", on_cpu=True, drafts_ahead=False), NgramDrafter)


@pytest.mark.usefixtures("installed")
def test_a_language_model_takes_them_by_default():
    model = LanguageModel(tiny_target(TARGET))  # on CPU: one pass
    assert (model.drafter.name, model.drafter.is_random) == ("parallel", False)
    assert model.drafter.num_drafts == ON_CPU.num_drafts
    assert model.with_drafter("auto", num_drafts=0).drafter.name == "autoregressive"


@pytest.fixture
def quick_compilation():
    before = jax.config.jax_compilation_cache_dir  # of the session; the command line sets its own
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("quick_compilation", "root")
def test_the_command_line_takes_a_folder_and_its_taps(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JETSPEC_CACHE", str(tmp_path / "cache"))
    model = write_tiny_checkpoint(tmp_path / "model")
    target = target_config_from_hf(read_hf_config(model), taps=(1,))
    assert target_config_from_hf(read_hf_config(model)).taps != (1,)
    folder = save(tmp_path / "drafter", target)
    options = ["--model", str(model), "--max-new-tokens", "4", "--refine", "J0", "--outcomes", "0"]
    assert main(["generate", "abc", "--raw", "--drafter", str(folder), *options]) == 0
    captured = capsys.readouterr()
    assert "drafter parallel, 4 drafts a round" in captured.out
    assert "random weights" not in captured.err
    assert main(["inspect", str(folder)]) == 0
    assert "JetSpecDraft" in capsys.readouterr().out
    (folder / "adapter/model.safetensors").unlink()
    assert main(["inspect", str(folder)]) == 1
