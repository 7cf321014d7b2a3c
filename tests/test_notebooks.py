"""Notebooks run from top to bottom on a fresh kernel, and are committed with outputs of such a run."""

from pathlib import Path

import nbformat
import pytest

from tools.run_notebook import execute

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# The kernel talks to itself over loopback; a library notes that it does so unencrypted.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_notebook_runs(path, monkeypatch):
    if path.stem == "03_train_your_draft":  # a toy: most of its minute is compilation
        monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    executed = execute(path)
    kinds = {key for cell in executed.cells for output in cell.get("outputs", []) for key in output.get("data", {})}
    assert "image/png" in kinds
    assert "text/html" in kinds


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_with_outputs(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
