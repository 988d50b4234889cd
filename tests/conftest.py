"""Shared by all tests: one CPU thread (so that two workers share two cores), and small models."""

from __future__ import annotations

import importlib
import math
import os
import pkgutil
import signal
import subprocess
import sys
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


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' fresh memory holds NaN, so that whatever one leaves unwritten shows."""
    import mechplateau_kernels

    def allocate(shape, dtype, device):
        return torch.full(shape, math.nan, dtype=dtype, device=device)

    for found in pkgutil.walk_packages(mechplateau_kernels.__path__, "mechplateau_kernels."):
        module = importlib.import_module(found.name)
        if hasattr(module, "allocate"):
            monkeypatch.setattr(module, "allocate", allocate)


@pytest.fixture
def run_cases(cases):
    """Runs files of `cases` in a process of its own: fails unless each selected case passed, and each file had some."""

    def run(files, selection, **environment):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_INTERPRET", "PYTEST_"))}
        options = ["-m", selection, "--tb=short", "-p", "no:cacheprovider"]
        # Without the main package's plugins, which are not needed, nor there on every machine.
        options += ["-o", "addopts=--strict-markers --import-mode=importlib"]
        # Triton 3.6's interpreter, of loops whose bounds are known at run time only.
        options += ["-W", "ignore:Conversion of an array with ndim:DeprecationWarning"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *(str(cases / file) for file in files), *options],
            env=inherited | {"OMP_NUM_THREADS": "1"} | environment,
            cwd=cases.parents[2],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
        assert " passed" in done.stdout
        assert all(f"{file} " in done.stdout for file in files), done.stdout

    return run
