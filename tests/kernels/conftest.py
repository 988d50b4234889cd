"""Runs the files of `cases/` in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"


@pytest.fixture
def cases():
    """The folder of the cases."""
    return CASES


@pytest.fixture
def run_cases():
    """Fails unless every selected case of the files passed, and each had some."""

    def run(files, selection, **environment):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_INTERPRET", "PYTEST_"))}
        options = ["-m", selection, "--tb=short", "-p", "no:cacheprovider"]
        # Without the main package's plugins, which are not needed, nor there on every machine.
        options += ["-o", "addopts=--strict-markers --import-mode=importlib"]
        # Triton 3.6's interpreter, of loops whose bounds are known at run time only.
        options += ["-W", "ignore:Conversion of an array with ndim:DeprecationWarning"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *(str(CASES / file) for file in files), *options],
            env=inherited | {"OMP_NUM_THREADS": "1"} | environment,
            cwd=CASES.parents[2],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
        assert " passed" in done.stdout
        assert all(f"{file} " in done.stdout for file in files), done.stdout

    return run
