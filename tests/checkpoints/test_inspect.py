import io
import json

import numpy as np
import pytest
from rich.console import Console

from jetspec_jax.checkpoints.inspect import inspect_checkpoint, render_report


def rendered(report) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(render_report(report))
    return console.file.getvalue()


def test_describes_a_sound_folder(make_config, make_weights, make_folder):
    weights = make_weights(make_config())
    folder = make_folder(None, weights)
    report = inspect_checkpoint(str(folder))
    assert report.problems == ()
    assert (report.source, report.kind, report.path) == (str(folder), "safetensors", folder)
    assert (report.architecture, report.config.num_layers) == ("LlamaForCausalLM", 2)
    assert report.num_parameters == sum(value.size for value in weights.values())
    assert report.num_bytes == 4 * report.num_parameters
    found = {tensor.key: (tensor.shape, tensor.stored_type) for tensor in report.tensors}
    assert found == {key: (value.shape, "F32") for key, value in weights.items()}


def test_describes_a_gguf_file_without_converting_it(make_gguf):
    path = make_gguf(quantised="Q4_1")
    report = inspect_checkpoint(path)
    assert report.problems == ()
    assert (report.kind, report.architecture) == ("gguf", "LlamaForCausalLM")
    types = {tensor.key: tensor.stored_type for tensor in report.tensors}
    assert types["model.layers.0.mlp.up_proj.weight"] == "Q4_1"
    assert report.num_bytes < report.num_parameters
    assert sorted(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"vocab_size": 48}, "model.embed_tokens.weight: expected [48, 32], found [40, 32]", id="C28"),
        pytest.param({"tie_word_embeddings": False}, "missing: lm_head.weight [40, 32]", id="C25"),
        pytest.param({"rope_theta": None}, "config.json has no 'rope_theta'", id="C27"),
        pytest.param({"hidden_size": "wide"}, "invalid literal", id="nonsense"),
        pytest.param({"num_attention_heads": 0, "head_dim": None}, "ZeroDivisionError", id="zero-heads"),
    ],
)
def test_reports_a_config_that_does_not_fit(make_config, make_folder, changes, message):
    folder = make_folder()
    (folder / "config.json").write_text(json.dumps(make_config(**changes)))
    report = inspect_checkpoint(folder)
    assert any(message in problem for problem in report.problems)
    assert len(report.tensors) == 20


def test_reports_taps_that_are_no_layers(make_folder):
    """C29."""
    assert "taps=(5,)" in inspect_checkpoint(make_folder(), taps=[5]).problems[0]


def test_reports_every_problem(make_config, make_weights, make_folder):
    weights = make_weights(make_config()) | {"x": np.zeros(2, np.float32)}
    del weights["model.norm.weight"]
    problems = inspect_checkpoint(make_folder(None, weights)).problems
    assert problems == ("missing: model.norm.weight [32]", "unexpected: x [2]")


def test_reports_a_tied_head_that_differs(make_config, make_weights, make_folder):
    weights = make_weights(make_config()) | {"lm_head.weight": np.zeros((40, 32), np.float32)}
    assert "differs from model.embed_tokens.weight" in inspect_checkpoint(make_folder(None, weights)).problems[0]


@pytest.mark.parametrize(
    "kept", [pytest.param(lambda n: n - 1, id="C26-last-byte"), pytest.param(lambda n: 0, id="C26-empty")]
)
def test_reports_truncated_weights_and_still_the_config(make_folder, kept):
    path = make_folder() / "model.safetensors"
    path.write_bytes(path.read_bytes()[: kept(path.stat().st_size)])
    report = inspect_checkpoint(path.parent)
    assert len(report.problems) == 1
    assert "found" in report.problems[0]
    assert report.config.vocab_size == 40
    assert report.tensors == ()


def test_reports_a_truncated_gguf_file(make_gguf):
    path = make_gguf()
    path.write_bytes(path.read_bytes()[:-1])
    report = inspect_checkpoint(path)
    assert (report.config, len(report.problems)) == (None, 1)


def test_reports_broken_json(make_folder):
    folder = make_folder()
    (folder / "config.json").write_text("{")
    assert "config.json: not JSON" in inspect_checkpoint(folder).problems[0]


def test_reports_that_nothing_was_found(tmp_path):
    report = inspect_checkpoint(tmp_path / "none")
    assert report.path is None
    assert "not found: expected a folder" in report.problems[0]


def test_renders_layers_folded_and_the_verdict(make_folder):
    text = rendered(inspect_checkpoint(make_folder()))
    assert "model.layers.*.mlp.down_proj.weight" in text
    assert "20 tensors" in text
    assert "no problems found" in text
    assert "[40, 32]" not in text


def test_renders_problems_as_they_are(make_config, make_weights, make_folder, tmp_path):
    """Square brackets of shapes are text, not markup."""
    weights = make_weights(make_config()) | {"x[red]": np.zeros(2, np.float32)}
    text = rendered(inspect_checkpoint(make_folder(None, weights)))
    assert "unexpected: x[red] [2]" in text
    assert "nothing" in rendered(inspect_checkpoint(tmp_path / "none"))
