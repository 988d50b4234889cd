"""The small size that the tasks share: a task's effects in a minute or a few, on one core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def small(*, steps: int, task: Mapping[str, Any], **training: Any) -> Mapping[str, Mapping[str, Any]]:
    """The preset `small`: width 64, batches of 64, a tenfold learning rate, ended half of the way past being solved.

    Args:
        steps: number of updates at most.
        task: the task's own sizes.
        training: other settings of training.
    """
    return {
        "task": task,
        "model": {"d_model": 64},
        "training": {"batch_size": 64, "lr": 1e-3, "stop_past_solved": 0.5, "steps": steps, **training},
        "evaluation": {"every": 5},
    }
