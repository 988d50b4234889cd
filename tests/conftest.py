"""Shared by all tests: one CPU thread (so that two workers share two cores), and small models."""

from __future__ import annotations

import os
import signal

# Before torch: two test processes on two cores would otherwise fight over them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)

# Under nohup, or in a shell's background, signals come ignored, and what is ignored stays so; the tests send them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded CPU generator."""
    return torch.Generator().manual_seed(1234)
