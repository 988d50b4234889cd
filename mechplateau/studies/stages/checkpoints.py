"""What figures measure on eight of a run's kept checkpoints: it is expensive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from mechplateau.development import llc_over_run
from mechplateau.development.afterwards import afterwards
from mechplateau.progress import Progress
from mechplateau.runs import Run
from mechplateau.studies.figures import CheckpointMeasure
from mechplateau.tasks import task_class

CHECKPOINTS = 8
_TASKS = ("in_context_regression", "text")


def chosen_steps(steps: Sequence[int], most: int = CHECKPOINTS) -> list[int]:
    """The first, the last, and others between them, evenly in √step: closer at first, where more happens."""
    if len(steps) <= most:
        return sorted(steps)
    left, chosen = set(steps), []
    for i in range(most):
        wanted = (i / (most - 1)) ** 2 * max(steps)
        chosen.append(min(left, key=lambda step: (abs(step - wanted), step)))
        left.remove(chosen[-1])
    return sorted(chosen)


class Afterwards(CheckpointMeasure):
    """Out-of-distribution errors, or curvature: the columns of `mechplateau.development.afterwards`.

    Args:
        kind: "ood" or "curvature".
    """

    def __init__(self, kind: str):
        self.kind = kind

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        return afterwards(run, kinds=(self.kind,), steps=chosen_steps(run.steps), progress=progress)


class Coefficients(CheckpointMeasure):
    """λ̂ with the paper's settings, in a column for each verdict (`llc saturated`, …), so that each number has its own;
    E[L], L* and the loss of a model that does not look at its input; the elasticity."""

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        steps = chosen_steps(run.steps)
        found = llc_over_run(run, steps, progress=progress, **run.task.llc_settings["published"]).table
        found = found.reset_index(drop=True)
        kept = ("loss", "mean_loss", "trivial_loss", "elasticity")
        columns = {f"chains_{name}": found[name] for name in kept}
        for verdict in dict.fromkeys(found["verdict"]):
            columns[f"llc {verdict}"] = found["paired"].where(found["verdict"] == verdict)
        return pd.DataFrame({"step": found["step"], **columns})

    def settings(self, scale: str) -> Mapping[str, Any]:
        return {"chains": {task: dict(task_class(task).llc_settings["published"]) for task in _TASKS}}


__all__ = ["CHECKPOINTS", "Afterwards", "Coefficients", "chosen_steps"]
