"""The numbers of a run that claims are about, from its table.

"On the way" are the rows before the run has learned: before the plateau's drop where one was found, else before
`solved_at`, else all. Peaks and lows on the way leave out step 0, which shows the initialization. Undefined is None.

| number | what |
|---|---|
| steps | last measured step |
| plateau | 1 where a plateau was found, else 0 |
| onset, drop, plateau_level | of the plateau (`metrics.plateau`): steps, steps, nats |
| learned_at | drop, or solved_at without a plateau: when the run had learned; None where it never did |
| took | solved_at; steps where the task was never solved (a lower bound): compares runs with and without a plateau, |
| | whatever their loss was at first |
| loss_start, loss_end | first and last loss, nats |
| accuracy_end | accuracy of generation at the last step |
| solved_at | first measured step with an accuracy of at least 0.95 |
| partial_at | first of three measured steps in a row at which the loss of the partial solution's outputs, mean over |
| | them, is at most half of their entropy in the data; that entropy is the loss of one who knows their frequencies |
| | only. Teacher-forced: a final carry that is known is wrong in generation for as long as the digits before it are. |
| | None where they never vary |
| partial_lead | 1 − partial_at / learned_at: how far ahead the partial solution is; where the run never learned, with |
| | its last step in place of learned_at (a lower bound) |
| others_then | accuracy of the other outputs at partial_at |
| cos_peak, cos_peak_at | largest COS on the way (of several groups of outputs, in the one where it is largest), and |
| | its step |
| cos_first | its COS at the first measured step after 0 |
| cos_learned, cos_end | its COS at learned_at, and at the last step |
| repetition_peak, repetition_data | largest ρ on the way; ρ of the data, mean over all rows |
| repetition_excess | repetition_peak / repetition_data |
| entropy_low, entropy_data | smallest entropy of generated sequences on the way, nats; mean of the data's |
| entropy_share | entropy_low / entropy_data |
| alpha_peak | largest α₁ on the way |
| count_check_peak | permutation: largest count check on the way |
| apm_start, apm_half, apm_end | attention progress (of several targets and layers the one where it ends highest) at |
| | step 0, at the row nearest to half of learned_at, at the last step |
| apm_gain | apm_half / apm_start |
| apm_plateau, apm_plateau_gain | attention progress in the middle between onset and drop; / apm_start |
| cos_peak_{location} | largest COS on the way at each further place measured |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from mechplateau.metrics import course
from mechplateau.metrics.accuracy import solved_at
from mechplateau.metrics.course import progress_column
from mechplateau.metrics.plateau import Plateau, find_plateau
from mechplateau.models.records import is_layer_place
from mechplateau.studies.numbers import Numbers
from mechplateau.tasks import Task

KNOWN = 0.5
"""Share of its entropy from which on, as a loss, a partial solution counts as known."""


def summarize(metrics: pd.DataFrame, task: Task) -> Numbers:
    """The numbers of a run of `task` with this table; see the module's docstring."""
    steps = metrics["step"].to_numpy()
    plateau, solved, learned, way = _course(metrics)
    numbers: Numbers = {
        "steps": int(steps[-1]),
        "plateau": float(plateau.found),
        "onset": plateau.onset,
        "drop": plateau.drop,
        "plateau_level": plateau.plateau_level,
        "learned_at": learned,
        "took": int(steps[-1]) if solved is None else solved,
        "loss_start": _at(metrics, "loss", 0),
        "loss_end": _at(metrics, "loss", -1),
        "accuracy_end": _at(metrics, "accuracy", -1),
        "solved_at": solved,
    }
    numbers |= _partial(metrics, task, steps, learned)
    numbers |= _collapse(metrics, steps, way, learned)
    numbers |= _tokens(metrics, way)
    numbers |= _progress(metrics, steps, learned, plateau.midpoint)
    return numbers


def _course(metrics: pd.DataFrame) -> tuple[Plateau, int | None, int | None, np.ndarray]:
    """The plateau, solved_at, learned_at, and which rows are on the way."""
    steps = metrics["step"].to_numpy()
    plateau = find_plateau(steps, metrics["loss"].to_numpy(dtype=float))
    solved = solved_at(steps, course.column(metrics, "accuracy"))
    learned = plateau.drop if plateau.found else solved
    return plateau, solved, learned, course.on_the_way(steps, plateau.drop, solved)


def _partial(metrics: pd.DataFrame, task: Task, steps: np.ndarray, learned: int | None) -> Numbers:
    at = others = None
    early = task.partial_outputs or ()
    late = [r for r in range(task.n_outputs) if r not in early]
    if early and late:
        mean = np.mean([course.column(metrics, f"loss_out_{r}") for r in early], axis=0)
        entropy = _entropy(task, early)
        known = (mean <= KNOWN * entropy) & (entropy > 0)
        at = _first(steps[:-2], known[:-2] & known[1:-1] & known[2:])
        if at is not None:
            row = int(np.searchsorted(steps, at))
            others = _finite(np.mean([course.column(metrics, f"accuracy_out_{r}")[row] for r in late]))
    until = learned if learned is not None else int(steps[-1])
    lead = None if at is None or not until else 1 - at / until
    return {"partial_at": at, "partial_lead": lead, "others_then": others}


def _entropy(task: Task, outputs: Sequence[int]) -> float:
    """Entropy in nats of each of these outputs over the data, mean over them; of 65,536 sequences."""
    tokens = task.sample(2**16, seed=0)[:, task.prompt_length :]
    shares = [torch.bincount(tokens[:, r]).double() / len(tokens) for r in outputs]
    return float(np.mean([torch.special.entr(share).sum() for share in shares]))


def _collapse(metrics: pd.DataFrame, steps: np.ndarray, way: np.ndarray, learned: int | None) -> Numbers:
    column = collapse_column(metrics)
    suffix = column.removeprefix("cos_final")
    cos = course.column(metrics, column)
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
        place = name.removeprefix("cos_").removesuffix(suffix)
        # Whole names: a group may be called like the end of another one.
        if name == f"cos_{place}{suffix}" and is_layer_place(place):
            numbers[f"cos_peak_{place}"] = _peak(course.column(metrics, name), steps, way)[0]
    return numbers


def _tokens(metrics: pd.DataFrame, way: np.ndarray) -> Numbers:
    steps = metrics["step"].to_numpy()
    repetition = _peak(course.column(metrics, "repetition"), steps, way)[0]
    repetition_data = _mean(course.column(metrics, "repetition_data"))
    low = _peak(-course.column(metrics, "entropy"), steps, way)[0]
    entropy = None if low is None else -low
    entropy_data = _mean(course.column(metrics, "entropy_data"))
    return {
        "repetition_peak": repetition,
        "repetition_data": repetition_data,
        "repetition_excess": _ratio(repetition, repetition_data),
        "entropy_low": entropy,
        "entropy_data": entropy_data,
        "entropy_share": _ratio(entropy, entropy_data),
        "alpha_peak": _peak(course.column(metrics, "alpha_1"), steps, way)[0],
        "count_check_peak": _peak(course.column(metrics, "count_check"), steps, way)[0],
    }


def collapse_column(metrics: pd.DataFrame) -> str:
    """The COS that stands for a run: see `metrics.course`."""
    return course.collapse_column(metrics, _course(metrics)[-1])


def _progress(
    metrics: pd.DataFrame, steps: np.ndarray, learned: int | None, midpoint: float | None
) -> Numbers:
    name = progress_column(metrics)
    start = half = during = end = None
    if name is not None:
        apm = course.column(metrics, name)

        def near(step: float | None) -> float | None:
            return None if step is None else _finite(apm[np.abs(steps - step).argmin()])

        start, end = _finite(apm[0]), _finite(apm[-1])
        half, during = near(None if learned is None else learned / 2), near(midpoint)
    return {
        "apm_start": start,
        "apm_half": half,
        "apm_end": end,
        "apm_gain": _ratio(half, start),
        "apm_plateau": during,
        "apm_plateau_gain": _ratio(during, start),
    }


def _first(steps: np.ndarray, true: np.ndarray) -> int | None:
    found = np.flatnonzero(true)
    return int(steps[found[0]]) if len(found) else None


def _peak(values: np.ndarray, steps: np.ndarray, way: np.ndarray) -> tuple[float | None, int | None]:
    return course.peak(values, steps, way) or (None, None)


def _mean(values: np.ndarray) -> float | None:
    usable = values[np.isfinite(values)]
    return float(usable.mean()) if len(usable) else None


def _at(metrics: pd.DataFrame, name: str, row: int) -> float | None:
    return _finite(course.column(metrics, name)[row])


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
