"""Writing a drafter folder: whole or absent, files within the limit, nothing of others touched."""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.checkpoints import drafter_files
from jetspec_jax.checkpoints.drafter_files import load_drafter
from jetspec_jax.config import draft_config_for
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import tiny_config

TARGET = tiny_config()


def test_no_file_exceeds_the_limit(save, named, weights_of, tmp_path):
    config = draft_config_for(tiny_config(intermediate_size=4096), num_layers=3)
    draft = Draft(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    save(tmp_path / "d", draft, None, None, storage="float32", max_shard_mb=1)
    shards = sorted((tmp_path / "d/draft").glob("*.safetensors"))
    assert len(shards) >= 5
    assert max(shard.stat().st_size for shard in shards) <= 1_000_000
    loaded = weights_of(load_drafter(tmp_path / "d", TARGET, dtype="float32"))
    for name, value in named(draft=draft).items():
        np.testing.assert_array_equal(loaded[name], value, err_msg=name)
    shards[1].unlink()
    with pytest.raises(ValueError, match=shards[1].name):
        load_drafter(tmp_path / "d", TARGET, dtype="float32")


def test_refuses_a_tensor_larger_than_a_file(save, tmp_path):
    config = draft_config_for(tiny_config(intermediate_size=16384), num_layers=1)
    draft = Draft(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"'layers.0.mlp.gate_proj.weight' \[16384, 32\] has 2097152 bytes"):
        save(tmp_path / "d", draft, None, None, storage="float32", max_shard_mb=1)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_save_leaves_the_old_folder(save, weights_of, parts, folder, tmp_path, monkeypatch):
    """Nothing is left to be taken for a drafter, and what was there still is."""
    before = weights_of(load_drafter(folder, TARGET, dtype="float32"))

    def die(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(drafter_files, "_move", die)
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: None)  # a killed process cleans nothing up
    with pytest.raises(KeyboardInterrupt):
        save(folder, parts[0], None, None)
    after = weights_of(load_drafter(folder, TARGET, dtype="float32"))
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("stage", ["adapter", "draft"])
def test_a_half_written_folder_is_no_drafter(save, parts, tmp_path, monkeypatch, stage):
    write = drafter_files.write_part

    def die(folder, part):
        if folder.name == stage:
            raise KeyboardInterrupt
        write(folder, part)

    monkeypatch.setattr(drafter_files, "write_part", die)
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: None)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "d", *parts, None)
    assert not (tmp_path / "d").exists()
    with pytest.raises(ValueError, match=r"is no drafter folder: no draft/config\.json"):
        load_drafter(tmp_path / ".d-partial", TARGET, dtype="float32")


def test_saving_again_replaces_the_folder(save, parts, folder):
    save(folder, parts[0], None, None)
    assert load_drafter(folder, TARGET, dtype="float32").calibration is None
    assert sorted(path.name for path in folder.parent.iterdir()) == ["tiny"]


def test_never_replaces_a_folder_with_other_files(save, parts, folder):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds notes\.txt"):
        save(folder, parts[0], None, None)
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"storage": "int4"}, "storage='int4' is not supported", id="storage"),
        pytest.param({"target": tiny_config(hidden_size=48)}, "the target gives 2 of width 48", id="target"),
    ],
)
def test_refuses_to_save(save, parts, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        save(tmp_path / "d", parts[0], None, None, **changes)
    assert list(tmp_path.iterdir()) == []


def test_refuses_to_save_what_is_not_finite(parts_of, save, tmp_path):
    draft, _ = parts_of()
    draft.layers[1].mlp.down.weight[...] = draft.layers[1].mlp.down.weight[...].at[0, 0].set(jnp.nan)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.down\.weight holds values that are not finite"):
        save(tmp_path / "d", draft, None, None)
