"""What all cases share."""

import pytest


@pytest.fixture(autouse=True)
def in_poisoned_memory(poisoned):
    """What a kernel leaves unwritten is NaN."""
