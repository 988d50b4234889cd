"""Each notebook runs from its first cell to its last."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest

BOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MINUTES_LONG = ("07_matrix_completion", "09_stages", "10_the_solved_model")
"""Those that take long, and show nothing when they are made smaller; they run with the slow tests."""
SECONDS_A_CELL = 180


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One process for all notebooks, which imports torch once; what one has trained, the next one finds."""
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebooks")
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=SECONDS_A_CELL, kernel_name="python3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECHPLATEAU_RUNS", str(folder / "runs"))
        patch.delenv("MECHPLATEAU_FULL", raising=False)
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR", str(folder / "matplotlib")))
        with client.setup_kernel(cwd=str(folder)):
            yield client


def test_the_long_ones_are_there():
    assert {path.stem for path in BOOKS} > set(MINUTES_LONG)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in MINUTES_LONG else ())
        for path in BOOKS
    ],
)
def test_they_run(path, kernel):
    book = nbformat.read(path, as_version=4)
    # No name of the notebook before is left.
    kernel.nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("%reset -f"), *book.cells])
    for index, cell in enumerate(kernel.nb.cells):
        kernel.execute_cell(cell, index)
    assert all(cell.execution_count for cell in book.cells if cell.cell_type == "code")
    assert any(cell.get("outputs") for cell in book.cells)
