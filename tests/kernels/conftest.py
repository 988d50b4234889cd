"""Where the kernels' cases lie, which `run_cases` runs in processes of their own."""

from pathlib import Path

import pytest


@pytest.fixture
def cases():
    """The folder of the cases."""
    return Path(__file__).parent / "cases"
