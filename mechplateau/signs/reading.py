"""All signs of one run, read off its table."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mechplateau.signs import columns, table
from mechplateau.signs.finder import Plateau, find_plateau, first_below
from mechplateau.signs.partial import PartialSolution, partial_solution
from mechplateau.signs.solving import SOLVED, solved
from mechplateau.signs.table import PlateauEnds, Rows, Sign

if TYPE_CHECKING:
    import pandas as pd


def plateau(metrics: pd.DataFrame, column: str | None = None, *, running: bool = False) -> Plateau:
    """The plateau of a run's loss, or why there is none: `find_plateau` on a column of its table.

    Args:
        metrics: the table; rows whose loss is undefined are left out.
        column: which loss, such as that of the masked entries; None: "loss".
        running: whether the run is still in progress: then a plateau without a drop so far is reported as well.

    Raises:
        ValueError: the table has no such column.
    """
    name = column or columns.LOSS
    if name not in metrics.columns:
        raise ValueError(f"plateau: expected a column {name!r}, got {', '.join(map(str, metrics.columns))}")
    steps = table.steps_of(metrics)
    found = find_plateau(steps, table.column(metrics, name), running=running)
    if name != columns.LOSS and found.reason.startswith("The loss "):
        found = replace(found, reason=name + found.reason.removeprefix("The loss"))
    return replace(found, column=name)


def falls_to(metrics: pd.DataFrame, level: float, column: str | None = None) -> Sign:
    """The first row at which the smoothed loss is at a level or below, smoothed as for a plateau's drop.

    Its value is the loss there, which noise may have put above the level.
    """
    name, rows = column or columns.LOSS, table.all_rows(metrics)
    steps, values = table.steps_of(metrics), table.column(metrics, name)
    at = first_below(steps, values, level)
    if at is None:
        return Sign(None, None, name, rows)
    return Sign(float(values[steps == at][0]), at, name, rows)


class Signs:
    """Every number that is read off a run's table; each is read on first use, and kept.

    Peaks and lows are those on the way: the rows before the run had learned, which is before the plateau's drop, or
    before it was solved where there is no drop; without step 0, which shows the initialization.

    Args:
        metrics: the run's table, one row an evaluation; undefined values are NaN.
        task: of the run, for the partial solution and for the column of its loss; None where it is not known.
        plateau: as found before, or where a view marks it; None: it is looked for.
        column: the loss whose plateau is looked for; None: the task's `plateau_column`, else "loss".
        running: whether the run is in progress: then a plateau without a drop so far counts, unless the run is solved.
    """

    def __init__(
        self,
        metrics: pd.DataFrame,
        task: Any = None,
        *,
        plateau: PlateauEnds | None = None,
        column: str | None = None,
        running: bool = False,
    ):
        self.metrics, self.task, self.running = metrics, task, running
        self.loss_column = column or columns.loss_column(task)
        self._given = plateau

    @cached_property
    def plateau(self) -> Plateau:
        """Onset, drop and level of the loss's plateau, or why there is none."""
        if isinstance(self._given, Plateau):
            return self._given
        running = self.running and self.solved.step is None
        return plateau(self.metrics, self.loss_column, running=running)

    @property
    def ends(self) -> PlateauEnds:
        """Onset, end and drop: those of the plateau, or as they were given."""
        return self.plateau if self._given is None else self._given

    @cached_property
    def solved(self) -> Sign:
        """The first measured step at which the task was solved; a run may end in the middle of its drop."""
        return solved(self.metrics)

    @cached_property
    def diverged_at(self) -> int | None:
        """The step from which on no loss is a finite number; None where the last one is, or nothing was measured."""
        finite = np.isfinite(table.column(self.metrics, "loss"))
        if finite.size == 0 or finite[-1]:
            return None
        after_the_last = int(np.flatnonzero(finite)[-1]) + 1 if finite.any() else 0
        return int(table.column(self.metrics, "step")[after_the_last])

    @property
    def learned_at(self) -> int | None:
        """The drop, or where there is none the step at which the task was solved; None where it never was."""
        return self.solved.step if self.ends.drop is None else self.ends.drop

    @property
    def midpoint(self) -> float | None:
        """The middle between onset and drop."""
        onset, drop = self.ends.onset, self.ends.drop
        return None if onset is None or drop is None else (onset + drop) / 2

    @cached_property
    def way(self) -> Rows:
        """The rows before the run had learned."""
        return table.on_the_way(self.metrics, self.learned_at)

    @cached_property
    def on_plateau(self) -> Rows:
        """The rows from the onset to the drop."""
        return table.on_the_plateau(self.metrics, self.ends)

    @cached_property
    def second_half(self) -> Rows:
        """The rows in the second half of the way."""
        return table.second_half_of_the_way(self.metrics, self.learned_at)

    @cached_property
    def partial(self) -> PartialSolution | None:
        """When the partial solution was known; None where the task has none."""
        return partial_solution(self.metrics, self.task)

    @cached_property
    def partial_lead(self) -> float | None:
        """1 − step / learned_at: how far ahead the partial solution is. Where the run never learned, with its last step
        in place of learned_at, which makes it a lower bound."""
        until = self._last_step if self.learned_at is None else self.learned_at
        if self.partial is None or self.partial.step is None or not until:
            return None
        return 1 - self.partial.step / until

    @property
    def _last_step(self) -> int | None:
        return table.all_rows(self.metrics).last

    # Hidden states and outputs.

    @cached_property
    def collapse_column(self) -> str:
        """The COS of final hidden states that represents the run: the group of outputs that collapses furthest."""
        return columns.collapse_column(self.metrics, self.way)

    def peak(self, name: str | None) -> Sign:
        """The largest value of a column on the way."""
        return table.peak(self.metrics, name, self.way)

    def low(self, name: str | None) -> Sign:
        """The smallest value of a column on the way."""
        return table.low(self.metrics, name, self.way)

    def at(self, name: str | None, step: float | None) -> Sign:
        """The value of a column in the row nearest to a step."""
        return table.value_at(self.metrics, name, step)

    def first(self, name: str | None) -> Sign:
        """The value of a column in the first row."""
        return self.at(name, table.all_rows(self.metrics).first)

    def after_start(self, name: str | None) -> Sign:
        """The value of a column in the first row after step 0, which shows the initialization."""
        return self.at(name, table.on_the_way(self.metrics, None).first)

    def last(self, name: str | None) -> Sign:
        """The value of a column in the last row."""
        return self.at(name, self._last_step)

    def of_data(self, name: str) -> Sign:
        """What the data would give: the mean of a column of the data's, over all rows."""
        return table.mean(self.metrics, f"{name}_data", table.all_rows(self.metrics))

    @cached_property
    def collapse(self) -> Sign:
        """The largest COS on the way."""
        return self.peak(self.collapse_column)

    @cached_property
    def collapse_on_plateau(self) -> Sign:
        """The largest COS on the plateau, of the same column."""
        return table.peak(self.metrics, self.collapse_column, self.on_plateau)

    @cached_property
    def collapse_in_second_half(self) -> Sign:
        """The largest COS in the second half of the way, of the same column."""
        return table.peak(self.metrics, self.collapse_column, self.second_half)

    @cached_property
    def repetition(self) -> Sign:
        """The largest ρ on the way."""
        return self.peak("repetition")

    @cached_property
    def repetition_excess(self) -> Sign:
        """The largest ρ on the way, minus the mean ρ of the data.

        A difference, since data that never repeat have a ρ of 0, over which there is no ratio.
        """
        return _combined(self.repetition, self.of_data("repetition"), lambda model, data: model - data)

    @cached_property
    def repetition_lasted(self) -> Sign:
        """For how many steps, on the way, ρ was larger than the data's mean by at least `REPEATS`.

        A row covers the steps since the row before it.
        """
        steps, values = table.steps_of(self.metrics), table.column(self.metrics, "repetition")
        data = self.of_data("repetition").value
        known = self.way.among(steps) & np.isfinite(values)
        if data is None or not known.any():
            return Sign(None, None, "repetition, repetition_data", self.way)
        high = known & (values - data >= REPEATS)
        lasted = np.diff(steps, prepend=steps[0])[high].sum()
        return Sign(float(lasted), None, "repetition, repetition_data", self.way)

    @cached_property
    def equal_to_first(self) -> Sign:
        """The largest α₁ while most outputs are wrong: of those that merely repeat the first."""
        return table.peak(self.metrics, "alpha_1", table.while_mostly_wrong(self.metrics))

    def counts_right(self, name: str = "count_check") -> Sign:
        """The first of three rows running in which values occur as often as they should: a count check of at least
        `solving.SOLVED`. `count_check_all` is the authors' average."""
        steps, values = table.steps_of(self.metrics), table.column(self.metrics, name)
        right = values >= SOLVED
        lasting = np.flatnonzero(right[:-2] & right[1:-1] & right[2:])
        if not len(lasting):
            return Sign(None, None, name, table.all_rows(self.metrics))
        return self.at(name, int(steps[lasting[0]]))

    @cached_property
    def entropy(self) -> Sign:
        """The smallest entropy of generated sequences on the way, nats."""
        return self.low("entropy")

    @cached_property
    def entropy_share(self) -> Sign:
        """The smallest entropy on the way over the mean entropy of the data."""
        return _combined(self.entropy, self.of_data("entropy"), _ratio)

    @cached_property
    def entropy_share_on_plateau(self) -> Sign:
        """The smallest entropy on the plateau over the mean entropy of the data."""
        lowest = table.low(self.metrics, "entropy", self.on_plateau)
        return _combined(lowest, self.of_data("entropy"), _ratio)

    @cached_property
    def entropy_share_in_second_half(self) -> Sign:
        """The smallest entropy in the second half of the way over the mean entropy of the data."""
        lowest = table.low(self.metrics, "entropy", self.second_half)
        return _combined(lowest, self.of_data("entropy"), _ratio)

    # Attention.

    @cached_property
    def progress_column(self) -> str | None:
        """The attention progress that represents the run: the one that rises most."""
        return columns.progress_column(self.metrics)

    @property
    def progress_start(self) -> Sign:
        """Attention progress in the first row."""
        return self.first(self.progress_column)

    @property
    def progress_half_way(self) -> Sign:
        """Attention progress half-way to the step at which the run had learned."""
        return self.at(self.progress_column, None if self.learned_at is None else self.learned_at / 2)

    @property
    def progress_on_plateau(self) -> Sign:
        """Attention progress in the middle of the plateau."""
        return self.at(self.progress_column, self.midpoint)

    @property
    def progress_at_drop(self) -> Sign:
        """Attention progress at the drop."""
        return self.at(self.progress_column, self.ends.drop)

    @property
    def progress_end(self) -> Sign:
        """Attention progress in the last row."""
        return self.last(self.progress_column)

    @cached_property
    def progress_leaving(self) -> Sign:
        """Attention progress when the loss is about to leave its level: in the last row up to the plateau's end where
        it is defined."""
        steps, values = table.steps_of(self.metrics), table.column(self.metrics, self.progress_column)
        end = self.ends.end
        until = np.isfinite(values) & (steps <= (-1 if end is None else end))
        rows = table.rows_where("up to the plateau's end", steps, until)
        if rows.last is None:
            return Sign(None, None, self.progress_column, rows)
        return replace(self.at(self.progress_column, rows.last), rows=rows)

    @cached_property
    def ahead_of_loss(self) -> Sign:
        """The share of its way from first to last row that attention progress has gone when the loss is about to leave
        the plateau. The loss has then gone a tenth of its own way down: at the loss's pace it would be 0.1.

        None where attention progress rises by less than `LEAST_RISE`, which leaves no way to have a share of.
        """
        start, now, end = self.progress_start, self.progress_leaving, self.progress_end
        if start.value is None or now.value is None or end.value is None:
            return replace(now, value=None, step=None)
        rise = end.value - start.value
        if rise < LEAST_RISE:
            return replace(now, value=None, step=None)
        return replace(now, value=(now.value - start.value) / rise)

    @cached_property
    def progress_falls_back(self) -> Sign:
        """The largest fall of attention progress below what it had reached before, up to the step at which the run had
        learned, as a share of its rise from first to last row: 0 where it only grows.

        None where it rises by less than `LEAST_RISE`.
        """
        steps, values = table.steps_of(self.metrics), table.column(self.metrics, self.progress_column)
        start, end = self.progress_start, self.progress_end
        until = np.inf if self.learned_at is None else self.learned_at
        known = np.isfinite(values) & (steps <= until)
        rows = table.rows_where("until it had learned", steps, known)
        if start.value is None or end.value is None or end.value - start.value < LEAST_RISE:
            return Sign(None, None, self.progress_column, rows)
        falls = np.maximum.accumulate(values[known]) - values[known]
        worst = int(falls.argmax())
        share = float(falls[worst] / (end.value - start.value))
        return Sign(share, int(steps[known][worst]), self.progress_column, rows)


REPEATS = 0.2
"""How far ρ must be above the data's for outputs to count as repeating tokens."""
LEAST_RISE = 0.05
"""Attention progress that rises by less than this has no way that it could have gone a share of."""


def _ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def _combined(sign: Sign, base: Sign, rule: Any) -> Sign:
    """A sign set against another number: its own row, both columns."""
    name = f"{sign.column}, {base.column}"
    if sign.value is None or base.value is None or (value := rule(sign.value, base.value)) is None:
        return replace(sign, value=None, step=None, column=name)
    return replace(sign, value=value, column=name)


def ratio(sign: Sign, base: Sign) -> float | None:
    """One sign over another; None where either is undefined or the other is 0."""
    return None if sign.value is None or base.value is None else _ratio(sign.value, base.value)
