"""Tiny runs: seconds on one core."""

from __future__ import annotations

import pytest

from mechplateau.config import RunConfig


def tiny(**sections):
    """A one-layer, 8-wide model on a short moving window sum, 12 steps."""
    base = {
        "task": {"n": 4, "k": 2, "p": 7, "max_num": 6},
        "model": {"d_model": 8},
        "training": {"steps": 12, "batch_size": 8, "lr": 1e-2},
        "evaluation": {"samples": 8},
        "checkpoints": {"every": 4},
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values} if isinstance(values, dict) else values
    return RunConfig.for_task("mws", **base)


@pytest.fixture
def config():
    return tiny()
