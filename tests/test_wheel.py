"""A wheel in a bare environment: the notebooks' first cell installs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_first_cell_installs_in_a_bare_environment(tmp_path):
    def done(*command, **environment):
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            command, cwd=tmp_path, env=kept | environment, capture_output=True, text=True, check=True
        ).stdout

    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    done(*pip, "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("mechplateau-*.whl")
    done(sys.executable, "-m", "venv", str(tmp_path / "bare"))
    book = nbformat.read(ROOT / "notebooks" / "00_train_and_look.ipynb", as_version=4)
    cell = book.cells[1].source.replace(', "transformer-lens<4"', "")  # no network here
    for _ in range(2):  # then it does nothing
        script = f"{cell}\nprint(mechplateau.__version__)\nprint(mechplateau.__file__)"
        out = done(
            *(str(tmp_path / "bare/bin/python"), "-c", script),
            MECHPLATEAU_SOURCE=str(wheel),
            PIP_NO_DEPS="1",
            PIP_NO_INDEX="1",
        )
        assert str(tmp_path / "bare") in out.splitlines()[-1]
    assert wheel.stat().st_size < 8_000_000
