"""Whether and when a run had solved its task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mechplateau.signs.table import Sign, column, rows_where, steps_of

if TYPE_CHECKING:
    import pandas as pd

SOLVED = 0.95
"""Accuracy from which a task counts as solved."""


def is_solved(accuracy: float | None) -> bool:
    """Whether a task with this accuracy of greedy generation counts as solved; undefined is not."""
    return accuracy is not None and accuracy >= SOLVED


def solved_at(steps: Sequence[int] | np.ndarray, accuracies: Sequence[float] | np.ndarray) -> int | None:
    """First measured step with an accuracy of at least `SOLVED`; None where there is none: not solved.

    Args:
        steps: `[row]` measured steps, increasing.
        accuracies: `[row]` accuracy of greedy generation, in [0, 1]; NaN where undefined.
    """
    solved = np.flatnonzero(np.asarray(accuracies, dtype=float) >= SOLVED)
    return int(steps[solved[0]]) if len(solved) else None


def solved(table: pd.DataFrame) -> Sign:
    """The first measured step at which a run had solved its task, and its accuracy there.

    A run may lose again what it had learned. Its rows are those whose accuracy is defined: where the task is not
    solved, they say until when that is known.
    """
    steps, accuracy = steps_of(table), column(table, "accuracy")
    rows = rows_where("with an accuracy", steps, np.isfinite(accuracy))
    at = solved_at(steps, accuracy)
    if at is None:
        return Sign(None, None, "accuracy", rows)
    return Sign(float(accuracy[steps == at][0]), at, "accuracy", rows)
