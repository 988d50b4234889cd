"""Shared by all tests: one CPU thread (so that two workers share two cores), and small models."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

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


class Heard:
    """A `progress` that remembers: of all bars together, [what, done, total] after each piece, and the words."""

    def __init__(self) -> None:
        self.counts: list[tuple[str, int, int]] = []
        self.words: list[str] = []
        self.open = 0
        self.then: Callable[[int], object] = lambda done: None
        """Called after each piece."""

    def __call__(self, *, total: int, desc: str) -> _HeardBar:
        self.open += 1
        return _HeardBar(self, total, desc)


class _HeardBar:
    def __init__(self, heard: Heard, total: int, desc: str):
        self.heard, self.total, self.desc, self.done = heard, total, desc, 0

    def update(self, n: int = 1) -> None:
        self.done += n
        self.heard.counts.append((self.desc, self.done, self.total))
        self.heard.then(self.done)

    def set_postfix_str(self, s: str = "") -> None:
        self.heard.words.append(s)

    def close(self) -> None:
        self.heard.open -= 1


@pytest.fixture
def heard() -> Heard:
    """A `progress` to hand to what is tested."""
    return Heard()
