"""`config.json` of drafts and adapters: strict in keys, types and values, and bound to one target."""

import json
from pathlib import Path

import pytest

from jetspec_jax.checkpoints.drafter_files import load_drafter
from jetspec_jax.checkpoints.inspect_drafter import inspect_drafter
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.testing import tiny_config

TARGET = tiny_config()


def change_config(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        pytest.param("draft", lambda c: c.update(format_version=2), "format_version=2 is not supported", id="version"),
        pytest.param("draft", lambda c: c.update(architecture="X"), "architecture 'X', expected", id="architecture"),
        pytest.param("draft", lambda c: c["config"].pop("shift"), "config.config: no 'shift'", id="missing-field"),
        pytest.param("draft", lambda c: c["config"].update(tree=1), "unknown 'tree'", id="unknown-field"),
        pytest.param("draft", lambda c: c["config"].update(causal=1), "1 is not of the type bool", id="type"),
        pytest.param("draft", lambda c: c["config"].update(inputs="x"), "'x' is not of the type", id="option"),
        pytest.param("draft", lambda c: c["config"]["rope"].update(theta=-1), "rope theta must be", id="bad-value"),
        pytest.param("draft", lambda c: c["config"].update(num_taps=3), "the draft reads 3 taps", id="taps"),
        pytest.param("draft", lambda c: c.update(target=[]), "expected an object", id="target"),
        pytest.param("adapter", lambda c: c["target"].update(vocab_size=5), "the adapter for", id="another-adapter"),
        pytest.param(
            "adapter", lambda c: c["config"].update(layers_per_module=[1]), "the adapter predicts 1 taps", id="modules"
        ),
    ],
)
def test_refuses_bad_configs(folder, part, change, message):
    change_config(folder / part / "config.json", change)
    with pytest.raises(CheckpointError, match=message):
        load_drafter(folder, TARGET, dtype="float32")
    assert message in "".join(inspect_drafter(folder).problems)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"vocab_size": 98}, "vocab_size=97, the target has 98", id="vocabulary"),
        pytest.param({"num_layers": 3, "taps": (0, 1)}, "num_layers=2, the target has 3", id="layers"),
        pytest.param({"hidden_size": 48}, "hidden_size=32, the target has 48", id="width"),
        pytest.param({"taps": (1,)}, r"taps=\(0, 1\), the target has \(1,\); load the target with taps=", id="taps"),
        pytest.param({"model_type": "llama"}, "model_type=qwen3, the target has llama", id="family"),
    ],
)
def test_refuses_another_target(saved, changes, message):
    with pytest.raises(ValueError, match=rf"another target \(tiny\): .*{message}"):
        load_drafter(saved, tiny_config(**changes), dtype="float32")
