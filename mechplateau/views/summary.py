"""The few numbers that tell a run, and one sentence around them.

Peaks are the largest value on the way, before the run had learned, and the first step that has it (`metrics.course`); a
value "at the drop" is the one of the evaluation step nearest to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mechplateau.metrics import course
from mechplateau.metrics.accuracy import SOLVED, solved_at
from mechplateau.views.columns import apm_columns, cos_columns, defined, location_label, series, way_of

if TYPE_CHECKING:
    import pandas as pd

    from mechplateau.views.data import RunView


@dataclass(frozen=True)
class Peak:
    """The largest value of a curve and the first step that has it."""

    value: float
    step: int


@dataclass(frozen=True)
class KeyNumbers:
    """The short table of a run; None where undefined.

    Attributes:
        onset: first step of the plateau.
        end: last step of the plateau.
        drop: step of the drop.
        plateau_level: loss on the plateau (nats).
        peak_cos: peak of COS at the final hidden state (of several groups of outputs, in the one where it is highest).
        peak_repetition: peak of ρ of the model's outputs.
        apm_start: attention progress at the first evaluation step (of several, the one that is highest at the end).
        apm_drop: attention progress at the drop.
        apm_end: attention progress at the last evaluation step.
        final_accuracy: accuracy of greedy generation at the last evaluation step.
        final_loss: training loss at the last evaluation step (nats).
        solved_at: first evaluation step at which the task was solved, with an accuracy of at least `metrics.SOLVED`;
            None where it was not, or no accuracy is known.
        judged_until: the last step whose accuracy is defined; None where it never is.
        cos_label: which COS, for people.
        apm_label: which target, for people.
    """

    onset: int | None
    end: int | None
    drop: int | None
    plateau_level: float | None
    peak_cos: Peak | None
    peak_repetition: Peak | None
    apm_start: float | None
    apm_drop: float | None
    apm_end: float | None
    final_accuracy: float | None
    final_loss: float | None
    solved_at: int | None
    judged_until: int | None
    cos_label: str | None
    apm_label: str | None


def key_numbers(view: RunView) -> KeyNumbers:
    """The short table of a run."""
    metrics = view.metrics
    plateau = view.plateau if view.plateau is not None and view.plateau.found else None
    drop = plateau.drop if plateau else None
    way = way_of(metrics, view.plateau)
    cos = next((c for c in cos_columns(metrics, view.plateau) if defined(metrics, c)), None)
    apm = next((c for c in apm_columns(metrics) if defined(metrics, c)), None)
    accuracy = course.column(metrics, "accuracy")
    judged = np.flatnonzero(np.isfinite(accuracy))
    return KeyNumbers(
        onset=plateau.onset if plateau else None,
        end=plateau.end if plateau else None,
        drop=drop,
        plateau_level=plateau.plateau_level if plateau else None,
        peak_cos=_peak(metrics, cos, way),
        peak_repetition=_peak(metrics, "repetition", way),
        apm_start=_value_at(metrics, apm, 0),
        apm_drop=_value_at(metrics, apm, _row_nearest(metrics, drop)),
        apm_end=_value_at(metrics, apm, len(metrics) - 1),
        final_accuracy=_value_at(metrics, "accuracy", len(metrics) - 1),
        final_loss=_value_at(metrics, "loss", len(metrics) - 1),
        solved_at=solved_at(metrics["step"].to_numpy(), accuracy),
        judged_until=None if not len(judged) else int(metrics["step"].iloc[judged[-1]]),
        cos_label=location_label(cos) if cos else None,
        apm_label=apm.removeprefix("apm_") if apm else None,
    )


SOLVED_LABEL = f"Solved (accuracy ≥ {SOLVED:g})"


def solved_text(numbers: KeyNumbers) -> str:
    """When the task was first solved, for people: a run may end in the middle of its drop, which a plateau does not
    tell, may lose again what it had learned, and may diverge, from where on its accuracy is undefined."""
    if numbers.solved_at is not None:
        return f"first at step {numbers.solved_at}"
    if numbers.judged_until is None:
        return "undefined"
    return f"no, up to step {numbers.judged_until}"


def verdict(view: RunView) -> str:
    """The plateau, and whether the task was solved, in a few sentences for people."""
    solved = f"{SOLVED_LABEL}: {solved_text(key_numbers(view))}."
    plateau = view.plateau
    if plateau is None:
        return f"The plateau has not been looked for. {solved}"
    if not plateau.found:
        reason = f"No plateau: {plateau.reason}" if plateau.reason else "No plateau was found."
        return f"{reason} {solved}"
    found = plateau.reason or f"The loss stays on a plateau from step {plateau.onset} to step {plateau.end}."
    sure = "" if plateau.confidence is None else f" Confidence {plateau.confidence:.2f}."
    return f"{found}{sure} {solved}"


def _peak(metrics: pd.DataFrame, column: str | None, way: np.ndarray) -> Peak | None:
    found = course.peak(course.column(metrics, column), metrics["step"].to_numpy(), way)
    return None if found is None else Peak(*found)


def _value_at(metrics: pd.DataFrame, column: str | None, row: int | None) -> float | None:
    if column is None or row is None or column not in metrics.columns or not 0 <= row < len(metrics):
        return None
    value = float(series(metrics, column)[row])
    return value if np.isfinite(value) else None


def _row_nearest(metrics: pd.DataFrame, step: int | None) -> int | None:
    if step is None or metrics.empty:
        return None
    return int(np.abs(metrics["step"].to_numpy() - step).argmin())
