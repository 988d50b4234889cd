"""Measurements too expensive during training, made over the checkpoints afterwards: a second table of the run.

1. Out-of-distribution errors, for regression in context (`mechplateau.development.ood`).
2. Curvature: the three largest eigenvalues of the Hessian and its trace, on one batch.

Learning coefficients, with their verdicts, are `mechplateau.development.llc_over_run`'s; a task's
`llc_settings` has settings that suit it. All are kept beside the run and not made twice.

Cost, for the paper's regression model on one thread: 1, seconds a checkpoint; 2, half a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pandas as pd

from mechplateau.development.curvature import hessian
from mechplateau.development.learning_coefficient import fresh_of, task_losses
from mechplateau.development.ood import out_of_distribution
from mechplateau.errors import UserError
from mechplateau.progress import Progress, bars
from mechplateau.tasks import InContextRegression

if TYPE_CHECKING:
    from mechplateau.runs import Run

KINDS = ("ood", "curvature")
PROBES = 10
"""Random vectors for the trace."""


def afterwards(
    run: Run,
    *,
    kinds: Sequence[str] = KINDS,
    steps: Sequence[int] | None = None,
    batch_size: int = 1024,
    seed: int = 0,
    progress: Progress | str | None = None,
) -> pd.DataFrame:
    """Make the second table of a run, or the part of it that is missing.

    Args:
        run: a run with checkpoints.
        kinds: what to measure; out-of-distribution errors are of regression in context only.
        steps: kept steps; None: all.
        batch_size: examples that curvature is measured on.
        seed: of the data and the random vectors; the same at every checkpoint.
        progress: makes a bar, as tqdm does (`mechplateau.progress`), and is given what is measured now.

    Returns:
        one row a checkpoint: step, then what was measured (see `out_of_distribution`; hessian_1 to hessian_3,
        hessian_trace and hessian_trace_error, its standard error).

    Raises:
        UserError: an unknown kind, or one that this task does not have.
    """
    if unknown := set(kinds) - set(KINDS):
        raise UserError(f"kinds: expected {', '.join(KINDS)}, got {sorted(unknown)[0]!r}")
    if "ood" in kinds and not isinstance(run.task, InContextRegression):
        raise UserError(f"kinds: ood is of in_context_regression only, and this run is of {run.task.name}")
    settings = {
        "ood": {"seed": seed},
        "curvature": {"seed": seed, "batch_size": batch_size, "probes": PROBES},
    }
    rows = []
    chosen = run.steps if steps is None else [run.step_of(step) for step in steps]
    with closing(bars(progress)(total=len(chosen) * len(kinds), desc="afterwards")) as bar:
        for step in chosen:
            row: dict[str, Any] = {"step": step}
            for kind in kinds:
                notes = run.notes(f"stages-{kind}", settings[kind])
                found = notes.read(step)
                if found is None:
                    bar.set_postfix_str(f"{kind} at step {step}")
                    numbers = _MEASURES[kind](run, step, settings[kind])
                    notes.write(step, numbers)
                    found = dict(numbers), {}
                row |= sorted(found[0].items())  # a note gives them back in this order
                bar.update(1)
            rows.append(row)
    return pd.DataFrame(rows)


def _ood(run: Run, step: int, settings: Mapping[str, int]) -> Mapping[str, float]:
    assert isinstance(run.task, InContextRegression)
    return out_of_distribution(run.model(step), run.task, seed=settings["seed"])


def _curvature(run: Run, step: int, settings: Mapping[str, int]) -> Mapping[str, float | None]:
    data = fresh_of(run.task, settings["batch_size"], settings["seed"])
    model, losses = run.model(step), task_losses(run.task)
    found = hessian(model, losses, data, top=3, probes=settings["probes"], seed=settings["seed"])
    values: dict[str, float | None] = {
        f"hessian_{i}": value for i, value in enumerate(found.eigenvalues, start=1)
    }
    return values | {"hessian_trace": found.trace, "hessian_trace_error": found.trace_error}


_MEASURES: Mapping[str, Callable[[Any, int, Mapping[str, int]], Mapping[str, float | None]]] = {
    "ood": _ood,
    "curvature": _curvature,
}

__all__ = ["KINDS", "PROBES", "afterwards"]
