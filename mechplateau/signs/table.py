"""What signs are made of: a column of a run's table, the rows that are looked at, and the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Rows:
    """Which rows of a table a sign looks at.

    Attributes:
        name: in words: "all", "on the way", "on the plateau", "nearest to step 80".
        first: step of the first of them; None where there are none.
        last: step of the last of them.
    """

    name: str
    first: int | None
    last: int | None

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.name}: no rows"
        return f"{self.name}: steps {self.first} to {self.last}"

    def among(self, steps: np.ndarray) -> np.ndarray:
        """Which of these measured steps belong to the rows, bool `[row]`."""
        if self.first is None or self.last is None:
            return np.zeros(len(steps), bool)
        return (steps >= self.first) & (steps <= self.last)


@dataclass(frozen=True)
class Sign:
    """A number read off a table, and where it was read.

    Attributes:
        value: the number; None where it is undefined.
        step: the row it is from; None where it is undefined, or of several rows.
        column: the column, or the columns, that were looked at; None where the table has none for it.
        rows: the rows that were looked at.
    """

    value: float | None
    step: int | None
    column: str | None
    rows: Rows


class PlateauEnds(Protocol):
    """The ends of a plateau: a `Plateau`, or what a view knows of one. Steps; None without a drop."""

    @property
    def onset(self) -> int | None: ...
    @property
    def end(self) -> int | None: ...
    @property
    def drop(self) -> int | None: ...


def steps_of(table: pd.DataFrame) -> np.ndarray:
    """The measured steps `[row]`.

    Raises:
        ValueError: the table has no such column.
    """
    if "step" not in table.columns:
        raise ValueError(
            f"table: expected a column 'step', got {', '.join(map(str, table.columns)) or 'none'}"
        )
    return table["step"].to_numpy()


def column(table: pd.DataFrame, name: str | None) -> np.ndarray:
    """A column as float64 `[row]`, NaN where undefined or infinite; all undefined where the table has none."""
    if name is None or name not in table.columns:
        return np.full(len(table), np.nan)
    values = table[name].to_numpy(dtype=float, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def mean_column(table: pd.DataFrame, names: Iterable[str]) -> np.ndarray:
    """The mean of several columns `[row]`; undefined where one of them is."""
    return np.mean([column(table, name) for name in names], axis=0)


def rows_where(name: str, steps: np.ndarray, chosen: np.ndarray) -> Rows:
    """Rows from the first to the last of those that are chosen, bool `[row]`."""
    found = steps[chosen]
    return Rows(name, int(found[0]), int(found[-1])) if len(found) else Rows(name, None, None)


def all_rows(table: pd.DataFrame) -> Rows:
    """Every row."""
    steps = steps_of(table)
    return rows_where("all", steps, np.ones(len(steps), bool))


def on_the_way(table: pd.DataFrame, learned_at: int | None) -> Rows:
    """The rows before the run had learned, all where it never did; without step 0, which shows the initialization.

    Args:
        table: of the run.
        learned_at: the drop of its plateau; without one, the step at which it was solved.
    """
    steps = steps_of(table)
    return rows_where(
        "on the way", steps, (steps > 0) & (steps < (np.inf if learned_at is None else learned_at))
    )


def second_half_of_the_way(table: pd.DataFrame, learned_at: int | None) -> Rows:
    """The later rows of those before the run had learned, from half of that step on; where it never did, of all rows.

    What a run without a plateau shows there it shows long after its initialization.
    """
    steps = steps_of(table)
    until = np.inf if learned_at is None else learned_at
    half = (steps[-1] if learned_at is None and len(steps) else until) / 2
    return rows_where("second half of the way", steps, (steps > 0) & (steps >= half) & (steps < until))


def while_mostly_wrong(table: pd.DataFrame) -> Rows:
    """The rows before the first in which at least half of the outputs are right; without step 0."""
    steps, accuracy = steps_of(table), column(table, "accuracy")
    right = np.flatnonzero(accuracy >= 0.5)
    until = steps[right[0]] if len(right) else np.inf
    return rows_where("while most outputs are wrong", steps, (steps > 0) & (steps < until))


def on_the_plateau(table: pd.DataFrame, plateau: PlateauEnds) -> Rows:
    """The rows from the onset to the drop, without the drop's own; to the last one where no drop came yet; none
    without a plateau."""
    steps = steps_of(table)
    if plateau.onset is None:
        return Rows("on the plateau", None, None)
    until = np.inf if plateau.drop is None else plateau.drop
    return rows_where("on the plateau", steps, (steps >= plateau.onset) & (steps < until))


def peak(table: pd.DataFrame, name: str | None, rows: Rows) -> Sign:
    """The largest value of a column over these rows, and the first step that has it."""
    return _extreme(table, name, rows, 1.0)


def low(table: pd.DataFrame, name: str | None, rows: Rows) -> Sign:
    """The smallest value of a column over these rows, and the first step that has it."""
    return _extreme(table, name, rows, -1.0)


def _extreme(table: pd.DataFrame, name: str | None, rows: Rows, direction: float) -> Sign:
    steps, values = steps_of(table), column(table, name)
    known = np.flatnonzero(rows.among(steps) & np.isfinite(values))
    if not len(known):
        return Sign(None, None, name, rows)
    row = known[(direction * values[known]).argmax()]
    return Sign(float(values[row]), int(steps[row]), name, rows)


def mean(table: pd.DataFrame, name: str | None, rows: Rows) -> Sign:
    """The mean of what is defined of a column over these rows."""
    values = column(table, name)[rows.among(steps_of(table))]
    known = values[np.isfinite(values)]
    return Sign(float(known.mean()) if len(known) else None, None, name, rows)


def value_at(table: pd.DataFrame, name: str | None, step: float | None) -> Sign:
    """The value of a column in the row nearest to a step, the earlier of two that are as near."""
    steps = steps_of(table)
    if step is None or not len(steps):
        return Sign(None, None, name, Rows("no step", None, None))
    row = int(np.abs(steps - step).argmin())
    at, value = int(steps[row]), float(column(table, name)[row])
    rows = Rows(f"nearest to step {step:g}", at, at)
    return Sign(value, at, name, rows) if np.isfinite(value) else Sign(None, None, name, rows)
