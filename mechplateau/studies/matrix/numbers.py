"""The numbers of a run of matrix completion that claims are about.

E is E x² of a cell, P the masked loss on the copying plateau. Around a step: the mean over the five evaluations nearest
to it, since one evaluation of 256 matrices is off by some 2 %. "Before" is 500 steps before the onset; in runs of
more than 10,000 steps, 4,000. The last layer is meant where none is named. Undefined is None.

| number | what |
|---|---|
| steps | last measured step |
| plateau | 1 where there is a copying plateau, else 0 |
| copying, onset, drop, half | steps, see `signs.copying` |
| dropped | 1 where there is a drop, else 0: an onset alone may be two noisy evaluations |
| onset_or_end | onset; the last step where there is no drop (a lower bound): compares runs that drop with others; |
| | None where there is no copying plateau, which then has no length |
| level_share | P / E |
| second_share | the second plateau's masked loss / P; None where there is none |
| mask_end_share | masked loss around the last step / P |
| loss_end | loss around the last step |
| spread_plateau, spread_end | `spread` around half of the onset, and around the last step |
| apm_start, apm_before | attention of masked queries on Ω, layer 0, mean of heads, at step 0 and before |
| apm_gain | apm_before − apm_start |
| loss_before_share | masked loss before / P |
| cos_start, cos_onset, cos_end | COS of masked cells at step 0, around the onset and around the last step |
| cos_peak, cos_peak_lead | its largest value up to the onset, after step 0; steps from there to the onset |
| cos_fall_before, cos_fall_after | cos_peak − cos_onset; cos_onset − cos_end |
| cos_same_peak, cos_excess | COS of observed cells that hold the same token at the step of the peak; cos_peak − that |
| partner_error_observed, partner_error_other | masked error / E x² of the cells whose partner is observed, and of the |
| | others, for the head of which these differ most (rank 1 only), at the last checkpoint |
| partner_gap, partner_row | their difference; share of that head's partners that lie in the query's row |
| partner_line | share of that head's partners that lie in the query's row, or in its column where that is more |
| identifiable_share, other_share | masked loss / P of the cells that the observed ones determine, and of the others |

Of a GPT that writes the matrix: steps and loss_end, and

| number | what |
|---|---|
| copied_at | first of two evaluations running with half of the observed cells right; None where there is none |
| right_observed, right_masked | share of right observed and masked cells around the last step |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mechplateau.circuits.completion import by_identifiable, by_partner
from mechplateau.config import RunConfig
from mechplateau.runs import Run
from mechplateau.signs.copying import Phases, completion_phases
from mechplateau.signs.table import column, steps_of
from mechplateau.studies.numbers import Numbers
from mechplateau.tasks.matrix_completion import MatrixCompletion, MatrixCompletionGPT

_LONG_RUN = 10_000
_AROUND = 5
_MATRICES = 1024
_SEED = 20


def numbers(run: Run, scale: str) -> Numbers:
    """What is read off the table, and off the last checkpoint."""
    task = run.config.task
    found = numbers_of_table(run.metrics, run.config)
    if isinstance(task, MatrixCompletion) and task.rank == 1 and len(run.steps):
        found |= _inside(run, task)
        level = found["level_share"]
        for name in ("identifiable_share", "other_share"):
            value = found[name]
            found[name] = None if value is None or not level else value / (level * task.second_moment)
    return found


def numbers_of_table(metrics: pd.DataFrame, config: RunConfig) -> Numbers:
    """What the table of a run of this configuration gives."""
    task = config.task
    if isinstance(task, MatrixCompletionGPT):
        return of_gpt(metrics)
    if not isinstance(task, MatrixCompletion):
        return {}
    lead = 500 if config.training.steps <= _LONG_RUN else 4000
    return from_table(metrics, task.second_moment, config.model.n_layers, lead)


def columns_read(config: RunConfig, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table that its numbers are read off."""
    last = config.model.n_layers - 1
    if isinstance(config.task, MatrixCompletionGPT):
        return ("loss", "accuracy_obs", "accuracy_mask")
    wanted = ("loss", "loss_obs", "loss_mask", "spread", "apm_mask_L0")
    return tuple(name for name in (*wanted, f"cos_mask_L{last}", f"cos_same_L{last}") if name in names)


def from_table(metrics: pd.DataFrame, second_moment: float, n_layers: int, lead: int) -> Numbers:
    """The numbers that the table gives.

    Args:
        metrics: one row an evaluation.
        second_moment: E x².
        n_layers: of the model.
        lead: steps before the onset that count as "before".
    """
    phases = completion_phases(metrics, second_moment)
    last = int(steps_of(metrics)[-1])
    onset, level = phases.onset, phases.level
    before = None if onset is None else onset - lead
    length = last if onset is None or phases.drop is None else onset
    cos, same = f"cos_mask_L{n_layers - 1}", f"cos_same_L{n_layers - 1}"
    found: Numbers = {
        "steps": last,
        "plateau": float(level is not None),
        "copying": phases.copying,
        "onset": onset,
        "drop": phases.drop,
        "half": phases.half,
        "dropped": float(phases.drop is not None),
        "onset_or_end": None if level is None else length,
        "level_share": _over(level, second_moment),
        "second_share": _over(phases.second_level, level),
        "mask_end_share": _over(around(metrics, "loss_mask", last), level),
        "loss_end": around(metrics, "loss", last),
        "spread_plateau": None if onset is None else around(metrics, "spread", onset / 2),
        "spread_end": around(metrics, "spread", last),
        "apm_start": _at_start(metrics, "apm_mask_L0"),
        "apm_before": around(metrics, "apm_mask_L0", before),
        "loss_before_share": _over(around(metrics, "loss_mask", before), level),
        "cos_start": _at_start(metrics, cos),
        "cos_onset": around(metrics, cos, onset),
        "cos_end": around(metrics, cos, last),
    }
    found["apm_gain"] = _minus(found["apm_before"], found["apm_start"])
    found |= _collapse(metrics, cos, same, phases)
    found["cos_fall_before"] = _minus(found["cos_peak"], found["cos_onset"])
    found["cos_fall_after"] = _minus(found["cos_onset"], found["cos_end"])
    found["cos_excess"] = _minus(found["cos_peak"], found["cos_same_peak"])
    return found


def of_gpt(metrics: pd.DataFrame) -> Numbers:
    """The numbers that the table of a GPT's run gives."""
    last = int(steps_of(metrics)[-1])
    half = column(metrics, "accuracy_obs") >= 0.5
    both = np.flatnonzero(half[:-1] & half[1:])
    return {
        "steps": last,
        "loss_end": around(metrics, "loss", last),
        "copied_at": int(steps_of(metrics)[both[0]]) if len(both) else None,
        "right_observed": around(metrics, "accuracy_obs", last),
        "right_masked": around(metrics, "accuracy_mask", last),
    }


def around(metrics: pd.DataFrame, name: str, step: float | None) -> float | None:
    """The mean of a column over the five rows nearest to a step; None for a step below 0, or without a value."""
    if step is None or step < 0:
        return None
    nearest = np.argsort(np.abs(steps_of(metrics) - step), kind="stable")[:_AROUND]
    values = column(metrics, name)[nearest]
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _collapse(metrics: pd.DataFrame, cos: str, same: str, phases: Phases) -> Numbers:
    steps, values = steps_of(metrics), column(metrics, cos)
    until = np.inf if phases.onset is None else phases.onset
    rows = np.flatnonzero((steps > 0) & (steps <= until) & np.isfinite(values))
    if not len(rows):
        return dict.fromkeys(("cos_peak", "cos_peak_lead", "cos_same_peak"))
    at = int(steps[rows[values[rows].argmax()]])
    return {
        "cos_peak": float(values[rows].max()),
        "cos_peak_lead": None if phases.onset is None else phases.onset - at,
        "cos_same_peak": around(metrics, same, at),
    }


def _inside(run: Run, task: MatrixCompletion) -> Numbers:
    """What the last checkpoint does on the partner's and the determined cells."""
    model = run.model(run.steps[-1])
    batch = task.batch(_MATRICES, seed=_SEED)
    table = by_partner(model, task, batch)
    gap = (table["error_other"] - table["error_observed"]).to_numpy()
    if not np.isfinite(gap).any():
        best: Numbers = dict.fromkeys(
            (
                *("partner_error_observed", "partner_error_other", "partner_gap"),
                *("partner_row", "partner_line"),
            )
        )
    else:
        line = table.iloc[int(np.nanargmax(gap))]
        best = {
            "partner_error_observed": float(line["error_observed"]),
            "partner_error_other": float(line["error_other"]),
            "partner_gap": float(np.nanmax(gap)),
            "partner_row": float(line["same_row"]),
            "partner_line": max(float(line["same_row"]), float(line["same_column"])),
        }
    split = by_identifiable(model, task, batch)
    return best | {
        "identifiable_share": split["loss_mask_identifiable"],
        "other_share": split["loss_mask_other"],
    }


def _at_start(metrics: pd.DataFrame, name: str) -> float | None:
    value = column(metrics, name)[0]
    return float(value) if np.isfinite(value) else None


def _over(value: float | None, unit: float | None) -> float | None:
    return None if value is None or not unit else value / unit


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
