"""The paper's four claims about a loss plateau, held against one run: a number, a range, and whether it is in it.

A pure function of the metrics table, the task and the plateau that was found. Claims are about the way to the drop:
the evaluations after step 0 and before it; a run without a plateau leaves them undecided. Peaks, and the columns that
stand for a run where it has several, are those of its other numbers (`metrics.course`). A claim is left out where it
means nothing: no partial solution known, a true output that repeats itself, no Ω, no pairs to compare. Definitions,
with P and F the levels of the loss on the plateau and at the end:

partial     A partial solution is generated first. Number: r / drop, with r the first step from which every output of
            the task's partial solution is right in at least 0.95 of the samples, three evaluations running.
            Holds: ≤ 0.9, and the other outputs right in at most 0.5 of the samples at r. In generation, so that the
            final carry of a sum, written last, is right only once the digits before it are.
            Paper: y₀ of window sums is right after about 70 steps, drops at 155 to 205.
repetition  Outputs repeat, or vary too little. Number: the largest running median of 3 evaluations of the model's ρ,
            minus the mean ρ of the data; beside it the smallest such median of the entropy over the data's mean
            entropy. Medians, so that one lucky batch is no finding; the peak itself is told as well.
            Holds: ≥ 0.2, or an entropy of at most 0.7 of the data's.
            Paper: ρ rises from 0.06 to 0.3–0.8 in window sums; prefix sums have a low entropy.
collapse    Hidden states collapse. Number: the largest COS of the final hidden states (where a task has several
            groups of outputs, of the one where it is largest). Holds: ≥ 0.75.
            Paper: 0.95–0.97 in window sums, about 0.80 in prefix sums.
attention   Attention is ahead of the loss. Number: the share of its way from first to last value that APM has gone
            when the loss is about to leave the plateau, that is at the plateau's last step. With several Ω or layers:
            of the APM that is highest at the end.
            Holds: ≥ 0.3; at the loss's own pace it would be 0.1.
            Paper: APM goes from 0.08 to 0.7–0.8 and is 0.35 at step 160, 0.5 at step 180: a share of 0.4 to 0.7.

The ranges are for runs without an intervention, and wider than what the paper shows, since they serve every task.

Source: arXiv 2506.13688, sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from mechplateau.metrics import course

if TYPE_CHECKING:
    import pandas as pd

    from mechplateau.metrics.plateau import Plateau
    from mechplateau.tasks import Task

RIGHT, IN_A_ROW = 0.95, 3
"""An output is learned where it is right in this share of the samples, so many evaluations running."""

LEAST_GROWTH = 0.05
"""Attention progress that grows by less than this has no way that it could have gone a share of."""

MOSTLY_REPEATED = 0.5
"""Data whose own outputs repeat this often say nothing about a bias to repeat."""


@dataclass(frozen=True)
class Ranges:
    """What a run is held to; an experiment with ranges of its own passes them.

    Attributes:
        partial_by: latest step of the partial solution, as a share of the drop's.
        others_below: largest accuracy that the other outputs may have by then.
        repetition_above: least ρ above the data's.
        entropy_below: largest entropy, as a share of the data's.
        cos_peak: smallest and largest peak of COS.
        attention_ahead: least share of its way that attention progress has gone.
    """

    partial_by: float = 0.9
    others_below: float = 0.5
    repetition_above: float = 0.2
    entropy_below: float = 0.7
    cos_peak: tuple[float, float] = (0.75, 1.0)
    attention_ahead: float = 0.3

    def __post_init__(self) -> None:
        for field in fields(self):
            value = np.asarray(getattr(self, field.name), dtype=float)
            if not np.isfinite(value).all():
                raise ValueError(f"Ranges.{field.name}: expected a finite number, got {value}")


@dataclass(frozen=True)
class Claim:
    """One claim, measured.

    Attributes:
        key: "partial", "repetition", "collapse" or "attention": a line of the module's table.
        name: the claim, for people.
        expected: its range, and what the paper has, for people.
        value: the number of the table; None where undefined.
        measured: the number with its step, or why it is undefined, for people.
        passed: whether the number is in its range; None where undefined.
    """

    key: str
    name: str
    expected: str
    value: float | None
    measured: str
    passed: bool | None


def claims_of(
    metrics: pd.DataFrame, task: Task, plateau: Plateau, ranges: Ranges | None = None
) -> tuple[Claim, ...]:
    """Measure the claims that mean something for this task.

    Args:
        metrics: the run's table (columns: `mechplateau.training.measure`), NaN where undefined.
        task: says which outputs are the partial solution.
        plateau: as found in this table.
        ranges: what to hold the run to; None: the module's.

    Returns:
        partial, repetition, collapse, attention, in this order, without those that do not apply.
    """
    run = _Run(metrics, task, plateau, ranges or Ranges())
    return tuple(
        claim for claim in (_partial(run), _repetition(run), _collapse(run), _attention(run)) if claim
    )


class _Run:
    """The table, and which of its rows are on the way to the drop."""

    def __init__(self, metrics: pd.DataFrame, task: Task, plateau: Plateau, ranges: Ranges):
        self.metrics, self.task, self.plateau, self.ranges = metrics, task, plateau, ranges
        self.steps = metrics["step"].to_numpy()
        none = np.zeros(len(metrics), bool)
        self.way = none if plateau.drop is None else course.on_the_way(self.steps, plateau.drop)

    def values(self, column: str) -> np.ndarray:
        """A column, NaN where undefined, infinite or not there."""
        return course.column(self.metrics, column)

    def mean(self, columns: Iterable[str]) -> np.ndarray:
        """The mean of several columns at each evaluation; NaN where one of them is."""
        return np.mean([self.values(column) for column in columns], axis=0)

    def smoothed(self, column: str) -> np.ndarray:
        """The running median of 3 defined evaluations; NaN at the first and the last, which have one neighbor only."""
        values = self.values(column)
        known = np.flatnonzero(np.isfinite(values))
        smooth = np.full(len(values), np.nan)
        if len(known) >= 3:
            smooth[known[1:-1]] = np.median(
                [values[known[:-2]], values[known[1:-1]], values[known[2:]]], axis=0
            )
        return smooth

    def peak(self, values: np.ndarray) -> tuple[float, int] | None:
        """The largest value on the way, and its step; None where none is defined."""
        return course.peak(values, self.steps, self.way)

    @property
    def missing(self) -> str:
        """Why something could not be measured."""
        return (
            "undefined: no plateau" if self.plateau.drop is None else "undefined: not measured up to the drop"
        )


def _partial(run: _Run) -> Claim | None:
    outputs, ranges = run.task.partial_outputs, run.ranges
    others = [r for r in range(run.task.n_outputs) if outputs is None or r not in outputs]
    if not outputs or not others:
        return None
    drop = run.plateau.drop
    name = "A partial solution is generated first"
    expected = (
        f"by {ranges.partial_by:g} of the way to the drop, others ≤ {ranges.others_below:g}; paper: about 0.4"
    )
    accuracies = np.stack([run.values(f"accuracy_out_{r}") for r in outputs])
    if drop is None or not np.isfinite(accuracies[:, run.way]).any():
        return Claim("partial", name, expected, None, run.missing, None)
    right = [bool(np.all(of_outputs >= RIGHT)) for of_outputs in accuracies.T]
    starts = range(len(right) - IN_A_ROW + 1)
    row = next((start for start in starts if all(right[start : start + IN_A_ROW])), None)
    if row is None:
        return Claim("partial", name, expected, None, "its outputs are never right for long", False)
    step, of_others = int(run.steps[row]), float(run.mean(f"accuracy_out_{r}" for r in others)[row])
    share = step / drop if drop else np.inf
    which = f"output{'s' if len(outputs) > 1 else ''} {_listed(outputs)}"
    measured = f"{which} right from step {step}, {share:.2f} of the way; others {of_others:.2f}"
    if np.isnan(of_others):
        return Claim("partial", name, expected, share, f"{measured} (undefined)", None)
    passed = share <= ranges.partial_by and of_others <= ranges.others_below
    return Claim("partial", name, expected, share, measured, bool(passed))


def _repetition(run: _Run) -> Claim | None:
    if "repetition" not in run.metrics.columns:
        return None
    of_data = _mean(run.values("repetition_data"))
    if of_data is not None and of_data > MOSTLY_REPEATED:
        return None
    ranges, name = run.ranges, "Outputs repeat, or vary too little"
    expected = (
        f"ρ ≥ {ranges.repetition_above:g} above the data's, or entropy ≤ {ranges.entropy_below:g} of it; "
        "paper: ρ 0.3 – 0.8"
    )
    peak, lasting = run.peak(run.values("repetition")), run.peak(run.smoothed("repetition"))
    if peak is None or lasting is None or of_data is None:
        return Claim("repetition", name, expected, None, run.missing, None)
    excess = lasting[0] - of_data
    passed = excess >= ranges.repetition_above
    measured = (
        f"peak ρ {peak[0]:.3f} at step {peak[1]}, data {of_data:.3f}; "
        f"median of 3 evaluations {excess:.3f} above the data's"
    )
    lowest, entropy_data = run.peak(-run.smoothed("entropy")), _mean(run.values("entropy_data"))
    if lowest is not None and entropy_data:
        ratio = -lowest[0] / entropy_data
        passed = passed or ratio <= ranges.entropy_below
        measured += f"; entropy {ratio:.3f} of the data's at step {lowest[1]}"
    return Claim("repetition", name, expected, excess, measured, bool(passed))


def _collapse(run: _Run) -> Claim | None:
    columns = [c for c in map(str, run.metrics.columns) if c.startswith("cos_final")]
    if not columns:
        return None
    name, (low, high) = "Hidden states collapse", run.ranges.cos_peak
    within = f"COS ≥ {low:g}" if high >= 1 else f"COS {low:g} – {high:g}"
    expected = f"{within}; paper: 0.80 – 0.97, by task"
    column = course.collapse_column(run.metrics, run.way)
    peak = run.peak(run.values(column))
    if peak is None:
        return Claim("collapse", name, expected, None, run.missing, None)
    at_drop = run.values(column)[run.steps <= run.plateau.drop][-1]
    group = column.removeprefix("cos_final").replace("_", " ")
    later = "" if np.isnan(at_drop) else f", {at_drop:.3f} at the drop"
    # Rounding may take the cosine of equal vectors a hair above 1.
    passed = low <= peak[0] <= max(high, 1 + 1e-6 if high >= 1 else high)
    return Claim(
        "collapse", name, expected, peak[0], f"{peak[0]:.3f}{group} at step {peak[1]}{later}", bool(passed)
    )


def _attention(run: _Run) -> Claim | None:
    column = course.progress_column(run.metrics)
    if column is None:
        return None
    name = "Attention is ahead of the loss"
    expected = (
        f"APM ≥ {run.ranges.attention_ahead:g} of its way when the loss leaves the plateau; paper: 0.4 – 0.7"
    )
    values, end = run.values(column), run.plateau.end
    if end is None or not (np.isfinite(values[0]) and np.isfinite(values[-1])):
        return Claim("attention", name, expected, None, run.missing, None)
    first, last = float(values[0]), float(values[-1])
    rows = np.flatnonzero((run.steps <= end) & np.isfinite(values))
    if last - first < LEAST_GROWTH:
        return Claim(
            "attention", name, expected, None, f"undefined: APM goes from {first:.3f} to {last:.3f}", None
        )
    row = int(rows[-1])
    now = float(values[row])
    share = (now - first) / (last - first)
    label = "" if len(course.progress_columns(run.metrics)) == 1 else f" ({column.removeprefix('apm_')})"
    measured = f"{share:.3f} at step {int(run.steps[row])}: APM{label} {now:.3f} of {first:.3f} → {last:.3f}"
    return Claim("attention", name, expected, share, measured, bool(share >= run.ranges.attention_ahead))


def _mean(values: np.ndarray) -> float | None:
    """The mean of what is defined; None where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _listed(outputs: tuple[int, ...]) -> str:
    """0 – 3 for neighbors, else 0, 2, 5."""
    if len(outputs) > 2 and list(outputs) == list(range(outputs[0], outputs[-1] + 1)):
        return f"{outputs[0]} – {outputs[-1]}"
    return ", ".join(map(str, outputs))
