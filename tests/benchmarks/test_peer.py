"""The peer has the shapes of the library's benchmarks, and imports without torch and JAX."""

import subprocess
import sys

import pytest

from benchmarks import peer, shapes
from jetspec_jax.checkpoints.hf_config import target_config_from_hf


@pytest.mark.parametrize("name", peer.SHAPES)
def test_shapes_are_those_of_the_library(name):
    config = shapes.SHAPES[name]()
    theirs = {**peer.SHAPES[name], "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    assert target_config_from_hf(theirs, taps=config.taps) == config


def test_starts_without_loading_a_framework():
    code = (
        "import sys, benchmarks.peer; print([name for name in ('jax', 'torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rows_that_do_not_fit_the_cache_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peer", "--context", "1900", "--rows", "1,17"])
    with pytest.raises(SystemExit):
        peer.main()
    assert "2048 slots" in capsys.readouterr().err
