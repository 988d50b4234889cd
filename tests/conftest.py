"""Shared by all tests: one CPU thread (so that two workers share two cores), and small models."""

from __future__ import annotations

import os

# Before torch: two test processes on two cores would otherwise fight over them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded CPU generator."""
    return torch.Generator().manual_seed(1234)
