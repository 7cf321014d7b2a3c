"""Executes a notebook and stores its outputs in place: `python -m tools.run_notebook notebooks/01_generate.ipynb`."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> nbformat.NotebookNode:
    """Runs every cell in the notebook's folder; raises at the first cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}})
    client.execute()
    for cell in notebook.cells:
        # Execution times would change the file at every run.
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            # Progress and warnings of libraries, with paths of this machine in them.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:]:
        nbformat.write(execute(Path(name)), name)
