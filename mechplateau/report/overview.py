"""Several runs in one table: what they are, the settings that differ, and their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, RunError, UserError, counted
from mechplateau.runs import Run
from mechplateau.schema import override
from mechplateau.views.configs import differing_settings

COLUMNS = ("run", "task", "what differs", "seed", "state", "step", "steps", "drop", "accuracy", "age (s)")
"""`what differs`: the settings that are not the same in all runs of this task here, seeds aside. `step`: the last one
that was measured. `steps`: as many as the run has to its end. `drop`: of the plateau. `accuracy`: the last one.
`age (s)`: seconds since the run folder was last written to. Undefined is NaN."""


def overview(
    runs: Sequence[Run], *, now: float | None = None, unreadable: Callable[[Run, str], None] | None = None
) -> pd.DataFrame:
    """One row a run, with `COLUMNS`.

    Args:
        runs: in the order of the rows.
        now: seconds since the epoch; None: the clock's.
        unreadable: called with each run whose record is damaged, and the reason; such runs have no row.
    """
    now = time.time() if now is None else now
    differing = _differing(runs)
    rows = []
    for run, differs in zip(runs, differing, strict=True):
        try:
            rows.append(_row(run, differs, now))
        except RunError as problem:
            if unreadable is not None:
                unreadable(run, str(problem))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def chosen_runs(runs: Sequence[Run], *, task: str | None = None, where: Sequence[str] = ()) -> list[Run]:
    """The runs of a task that have the given settings.

    Args:
        runs: to choose from.
        task: a task's name; None: all.
        where: `FIELD=VALUE`, such as `training.lr=3e-4`: a run fits if it has this value.

    Raises:
        UserError: no run of this task, or a setting that none of the runs has.
    """
    names = sorted({run.task.name for run in runs})
    if task is not None and task not in names:
        raise UserError(f"--task: expected one of {', '.join(names) or '(no runs)'}, got {task!r}")
    kept = [run for run in runs if task in (None, run.task.name)]
    for assignment in where:
        kept = _fitting(kept, assignment)
    return kept


def sorted_by(table: pd.DataFrame, column: str | None) -> pd.DataFrame:
    """The rows in order of a column; with a minus before its name, the largest first. Undefined comes last.

    Raises:
        UserError: no such column.
    """
    if column is None:
        return table
    name = column.removeprefix("-")
    known = {known.partition(" (")[0]: known for known in COLUMNS}
    if name not in known:
        raise UserError(
            f"--sort: expected one of {', '.join(known)}, with a minus for the largest first; got {column!r}"
        )
    return table.sort_values(
        known[name], ascending=not column.startswith("-"), kind="stable", na_position="last"
    )


def _fitting(runs: Sequence[Run], assignment: str) -> list[Run]:
    kept, problem = [], None
    for run in runs:
        try:
            if RunConfig.parse(override(run.config.data(), [assignment])) == run.config:
                kept.append(run)
        except ConfigError as error:  # this task has no such setting; another one may
            problem = error
    if problem is not None and not kept:
        raise UserError(f"--where {problem}")
    return kept


def _differing(runs: Sequence[Run]) -> list[str]:
    """For each run, the settings in which the runs of its task differ, as `field=value`."""
    of_task: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        of_task.setdefault(run.task.name, []).append(index)
    found = [""] * len(runs)
    for indices in of_task.values():
        settings = differing_settings([runs[index].config.yaml() for index in indices])
        for place, index in enumerate(indices):
            found[index] = ", ".join(f"{name}={values[place]}" for name, values in settings if name != "seed")
    return found


def state_of(run: Run) -> str:
    """The status in words; unknown where the record of it is lost."""
    if (stopped := run.stopped_at) is not None:
        return f"stopped at {stopped} of {run.config.training.steps}"
    if run.status == "running" and run.at_work is False:
        return "killed, or running elsewhere"
    return run.status or ("unknown" if run.steps else "not begun")


def _row(run: Run, differs: str, now: float) -> dict[str, Any]:
    measured = not run.metrics.empty
    accuracy = run.signs.last("accuracy").value if measured else None
    drop = run.signs.plateau.drop if measured else None
    diverged = ", diverged" if measured and run.signs.diverged_at is not None else ""
    lost = f", {counted(len(run.missing), 'checkpoint')} missing" if run.missing else ""
    values = (
        run.name,
        run.task.name,
        differs,
        run.config.seed,
        state_of(run) + diverged + lost,
        run.reached,
        run.config.training.steps,
        float("nan") if drop is None else drop,
        float("nan") if accuracy is None else accuracy,
        max(0.0, now - run.written_at),
    )
    return dict(zip(COLUMNS, values, strict=True))
