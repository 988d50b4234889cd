"""A small run with a plateau, trained once a session: some seconds."""

from __future__ import annotations

from mechplateau.config import RunConfig


def toy(**sections):
    """Moving window sum of 6 numbers, width 64: the loss stays near 2.1 from step 78 to 158 and then drops."""
    base = {
        "task": {"n": 6, "k": 2, "p": 13, "max_num": 12},
        "model": {"d_model": 64},
        "training": {"steps": 240, "batch_size": 64, "lr": 2e-3},
        "evaluation": {"samples": 32, "every": 4},
        "checkpoints": {"every": 40},
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values} if isinstance(values, dict) else values
    return RunConfig.for_task("mws", **base)
