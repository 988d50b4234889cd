"""The numbers of a run that claims are about, from its table.

"On the way" are the rows before the run has learned: before the plateau's drop where one was found, else before
`solved_at`, else all. Peaks and lows on the way leave out step 0, which shows the initialization. Undefined is None.

| number | what |
|---|---|
| steps | last measured step |
| plateau | 1 where a plateau was found, else 0 |
| onset, drop, plateau_level | of the plateau (`metrics.plateau`): steps, steps, nats |
| learned_at | drop, or solved_at without a plateau: when the run had learned; None where it never did |
| took | first measured step whose loss (running median of 3 rows) is half-way from the first to the last: it compares |
| | runs with and without a plateau; steps where the task was never solved (a lower bound) |
| loss_start, loss_end | first and last loss, nats |
| accuracy_end | accuracy of generation at the last step |
| solved_at | first measured step with an accuracy of at least 0.95 |
| partial_at | first measured step at which the partial solution's outputs are right 95 % of the time on average |
| partial_lead | 1 − partial_at / learned_at: how far ahead the partial solution is |
| others_then | accuracy of the other outputs at partial_at |
| cos_peak, cos_peak_at | largest COS (first group) on the way, and its step |
| cos_first | COS at the first measured step after 0 |
| cos_learned, cos_end | COS at learned_at, and at the last step |
| repetition_peak, repetition_data | largest ρ on the way; ρ of the data, mean over all rows |
| repetition_excess | repetition_peak / repetition_data |
| entropy_low, entropy_data | smallest entropy of generated sequences on the way, nats; mean of the data's |
| entropy_share | entropy_low / entropy_data |
| alpha_peak | largest α₁ on the way |
| count_check_peak | permutation: largest count check on the way |
| apm_start, apm_half, apm_end | attention progress (first target, last layer that has it) at step 0, at the row |
| | nearest to half of learned_at, at the last step |
| apm_gain | apm_half / apm_start |
| cos_peak_{location} | largest COS on the way at each further place measured |
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from mechplateau.metrics.plateau import find_plateau
from mechplateau.tasks import Task

Numbers = dict[str, float | None]
RIGHT = 0.95
"""Accuracy from which outputs count as learned."""


def summarize(metrics: pd.DataFrame, task: Task) -> Numbers:
    """The numbers of a run of `task` with this table; see the module's docstring."""
    steps = metrics["step"].to_numpy()
    plateau = find_plateau(steps, metrics["loss"].to_numpy(dtype=float))
    solved = _first(steps, _column(metrics, "accuracy") >= RIGHT)
    learned = plateau.drop if plateau.found else solved
    way = (steps > 0) & (steps < (learned if learned is not None else np.inf))
    numbers: Numbers = {
        "steps": int(steps[-1]),
        "plateau": float(plateau.found),
        "onset": plateau.onset,
        "drop": plateau.drop,
        "plateau_level": plateau.plateau_level,
        "learned_at": learned,
        "took": int(steps[-1]) if solved is None else _half_way(steps, _column(metrics, "loss")),
        "loss_start": _at(metrics, "loss", 0),
        "loss_end": _at(metrics, "loss", -1),
        "accuracy_end": _at(metrics, "accuracy", -1),
        "solved_at": solved,
    }
    numbers |= _partial(metrics, task, steps, learned)
    numbers |= _collapse(metrics, task, steps, way, learned)
    numbers |= _tokens(metrics, way)
    numbers |= _progress(metrics, steps, learned)
    return numbers


def _partial(metrics: pd.DataFrame, task: Task, steps: np.ndarray, learned: int | None) -> Numbers:
    at = others = None
    early = task.partial_outputs or ()
    late = [r for r in range(task.n_outputs) if r not in early]
    if early and late:
        mean = np.mean([_column(metrics, f"accuracy_out_{r}") for r in early], axis=0)
        at = _first(steps, mean >= RIGHT)
        if at is not None:
            row = int(np.searchsorted(steps, at))
            others = _finite(np.mean([_column(metrics, f"accuracy_out_{r}")[row] for r in late]))
    lead = None if at is None or not learned else 1 - at / learned
    return {"partial_at": at, "partial_lead": lead, "others_then": others}


def _collapse(
    metrics: pd.DataFrame, task: Task, steps: np.ndarray, way: np.ndarray, learned: int | None
) -> Numbers:
    group = next(iter(task.collapse_pairs), "")
    suffix = f"_{group}" if group else ""
    cos = _column(metrics, f"cos_final{suffix}")
    peak, at = _peak(cos, steps, way)
    after_first = np.flatnonzero(steps > 0)
    numbers: Numbers = {
        "cos_peak": peak,
        "cos_peak_at": at,
        "cos_first": _finite(cos[after_first[0]]) if len(after_first) else None,
        "cos_learned": None if learned is None else _finite(cos[np.abs(steps - learned).argmin()]),
        "cos_end": _finite(cos[-1]),
    }
    for name in metrics.columns:
        if name.startswith("cos_L") and name.endswith(suffix):
            place = name.removeprefix("cos_").removesuffix(suffix)
            numbers[f"cos_peak_{place}"] = _peak(_column(metrics, name), steps, way)[0]
    return numbers


def _tokens(metrics: pd.DataFrame, way: np.ndarray) -> Numbers:
    steps = metrics["step"].to_numpy()
    repetition = _peak(_column(metrics, "repetition"), steps, way)[0]
    repetition_data = _mean(_column(metrics, "repetition_data"))
    low = _peak(-_column(metrics, "entropy"), steps, way)[0]
    entropy = None if low is None else -low
    entropy_data = _mean(_column(metrics, "entropy_data"))
    return {
        "repetition_peak": repetition,
        "repetition_data": repetition_data,
        "repetition_excess": _ratio(repetition, repetition_data),
        "entropy_low": entropy,
        "entropy_data": entropy_data,
        "entropy_share": _ratio(entropy, entropy_data),
        "alpha_peak": _peak(_column(metrics, "alpha_1"), steps, way)[0],
        "count_check_peak": _peak(_column(metrics, "count_check"), steps, way)[0],
    }


def progress_column(metrics: pd.DataFrame) -> str | None:
    """The attention progress that stands for a run: of its first target, at the last layer measured."""
    columns = [name for name in metrics.columns if name.startswith("apm_") and name != "apm_zero_count"]
    if not columns:
        return None
    target = columns[0].rpartition("_L")[0] if columns[0].rpartition("_L")[2].isdigit() else columns[0]
    return [name for name in columns if name == target or name.startswith(f"{target}_L")][-1]


def _progress(metrics: pd.DataFrame, steps: np.ndarray, learned: int | None) -> Numbers:
    name = progress_column(metrics)
    half = start = end = None
    if name is not None:
        apm = _column(metrics, name)
        start, end = _finite(apm[0]), _finite(apm[-1])
        half = None if learned is None else _finite(apm[np.abs(steps - learned / 2).argmin()])
    return {"apm_start": start, "apm_half": half, "apm_end": end, "apm_gain": _ratio(half, start)}


def _half_way(steps: np.ndarray, loss: np.ndarray) -> int | None:
    known = np.isfinite(loss)
    steps, loss = steps[known], loss[known]
    if not len(loss):
        return None
    smooth = loss.copy()
    smooth[1:-1] = np.median(np.stack([loss[:-2], loss[1:-1], loss[2:]]), axis=0)
    return _first(steps, smooth <= (loss[0] + loss[-1]) / 2)


def _column(metrics: pd.DataFrame, name: str) -> np.ndarray:
    """A column as floats; all undefined where the table has none."""
    if name not in metrics.columns:
        return np.full(len(metrics), np.nan)
    return metrics[name].to_numpy(dtype=float)


def _first(steps: np.ndarray, true: np.ndarray) -> int | None:
    found = np.flatnonzero(true)
    return int(steps[found[0]]) if len(found) else None


def _peak(values: np.ndarray, steps: np.ndarray, way: np.ndarray) -> tuple[float | None, int | None]:
    usable = np.where(way & np.isfinite(values), values, -np.inf)
    row = int(usable.argmax())
    return (float(values[row]), int(steps[row])) if np.isfinite(usable[row]) else (None, None)


def _mean(values: np.ndarray) -> float | None:
    usable = values[np.isfinite(values)]
    return float(usable.mean()) if len(usable) else None


def _at(metrics: pd.DataFrame, name: str, row: int) -> float | None:
    return _finite(_column(metrics, name)[row])


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def rounded(numbers: Mapping[str, float | None]) -> Numbers:
    """For tables: six significant digits, whole numbers without a point."""
    return {
        name: None if value is None else (int(value) if float(value).is_integer() else float(f"{value:.6g}"))
        for name, value in numbers.items()
    }
