"""A run's course: when it had learned, the rows on the way there, and the columns and peaks that stand for it.

The report, its claims, `mechplateau show` and the studies' numbers all ask here, so that no two of them give two
numbers for one thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def column(metrics: pd.DataFrame, name: str | None) -> np.ndarray:
    """A column as float64 `[row]`, NaN where undefined or infinite; all undefined where the table has none."""
    if name is None or name not in metrics.columns:
        return np.full(len(metrics), np.nan)
    values = metrics[name].to_numpy(dtype=float, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def on_the_way(steps: np.ndarray, drop: int | None, solved_at: int | None = None) -> np.ndarray:
    """Which rows come before the run had learned, bool `[row]`.

    Before the plateau's drop where one was found, else before the task was solved, else all; without step 0, which
    shows the initialization.

    Args:
        steps: measured steps `[row]`.
        drop: of the plateau; None without one.
        solved_at: first measured step at which the task was solved; None where it was not.
    """
    learned = drop if drop is not None else solved_at
    return (steps > 0) & (steps < (learned if learned is not None else np.inf))


def peak(values: np.ndarray, steps: np.ndarray, way: np.ndarray) -> tuple[float, int] | None:
    """The largest value on the way and the first step that has it; None where none is defined."""
    known = np.flatnonzero(way & np.isfinite(values))
    if not len(known):
        return None
    row = known[values[known].argmax()]
    return float(values[row]), int(steps[row])


def collapse_column(metrics: pd.DataFrame, way: np.ndarray) -> str:
    """The COS of final hidden states that stands for a run: where a task has several groups of outputs, the one that
    collapses furthest on the way (the first of equal ones); concatenated windows learn one group after the other."""
    steps = metrics["step"].to_numpy()
    names = [name for name in map(str, metrics.columns) if name.startswith("cos_final")]
    peaks = {name: peak(column(metrics, name), steps, way) for name in names}
    return max(
        names, key=lambda name: -np.inf if (found := peaks[name]) is None else found[0], default="cos_final"
    )


def progress_columns(metrics: pd.DataFrame) -> list[str]:
    """All columns of the attention progress measure, one a target and layer."""
    names = map(str, metrics.columns)
    return [name for name in names if name.startswith("apm_") and name != "apm_zero_count"]


def progress_column(metrics: pd.DataFrame) -> str | None:
    """The attention progress that stands for a run: where a task has several targets or a model several layers, the one
    that is highest at the last step (the first of equal ones), which is the attention that the solution uses."""
    names = progress_columns(metrics)
    if metrics.empty or not names:
        return next(iter(names), None)
    return max(names, key=lambda name: np.nan_to_num(column(metrics, name)[-1], nan=-1.0))
