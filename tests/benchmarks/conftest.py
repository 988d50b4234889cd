"""`benchmarks/` is not an installed package; its modules are imported by their file names."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture
def cases():
    """The folder of the cases, which `run_cases` runs in a process of its own."""
    return Path(__file__).parent / "cases"
