"""The phases of a run of matrix completion, read off the loss over masked cells.

First the model copies observed cells and gives masked ones about 0: the masked loss stays near E x². Then it drops, and
may stop at a second level before it is done.

| sign | first of two evaluations running, with P the level |
|---|---|
| copying | observed loss below 0.02 E x² and masked loss above 0.9 E x²; P is the median masked loss of all such rows |
| onset | masked loss below 0.9 P |
| drop | masked loss below 0.75 P |
| half | masked loss below 0.5 P |

The definitions are ours; arXiv 2410.22244 sees the phases by eye.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mechplateau.signs.table import Rows, all_rows, column, rows_where, steps_of

if TYPE_CHECKING:
    import pandas as pd

OBSERVED, MASKED = "loss_obs", "loss_mask"
_COPIES, _IGNORES = 0.02, 0.9
_SHARES = {"onset": 0.9, "drop": 0.75, "half": 0.5}
_LEVEL_CHANGE = 0.05
"""How much a loss that is level may change from half to half of the last rows, as a share of P."""
_SOLVED = 0.1
"""Share of P below which a run is done, and its last level no plateau."""


@dataclass(frozen=True)
class Phases:
    """When a run of matrix completion copies, and when it starts to complete.

    Attributes:
        level: P, the masked loss on the copying plateau; None where the run has none.
        copying: first step on it.
        onset, drop, half: steps; None where it did not come to that yet.
        second_level: the masked loss at which the run is at its end, where that is level and not done; None otherwise.
        second_from: first step from which on the masked loss stays within 0.05 P of it.
        verdict: in words.
        column: the columns that were read.
        rows: on the plateau: the rows of which P is the median, from the first to the last.
    """

    level: float | None
    copying: int | None
    onset: int | None
    drop: int | None
    half: int | None
    second_level: float | None
    second_from: int | None
    verdict: str
    column: str
    rows: Rows


def completion_phases(table: pd.DataFrame, second_moment: float) -> Phases:
    """The phases of a run.

    Args:
        table: columns step, loss_obs and loss_mask; rows that lack one of the losses are left out.
        second_moment: E x² (`task.second_moment`).
    """
    steps, observed, masked = steps_of(table), column(table, OBSERVED), column(table, MASKED)
    known = np.isfinite(masked) & np.isfinite(observed)
    steps, observed, masked = steps[known], observed[known], masked[known]
    read = f"{OBSERVED}, {MASKED}"
    on = (observed < _COPIES * second_moment) & (masked > _IGNORES * second_moment)
    if not on.any():
        why = "no plateau: at no evaluation are observed cells copied and masked ones unknown"
        return Phases(None, None, None, None, None, None, None, why, read, all_rows(table))
    level = float(np.median(masked[on]))
    found = {name: _first_of_two(steps, masked < share * level) for name, share in _SHARES.items()}
    second_level, second_from = _second(steps, masked, level, found["drop"])
    if found["drop"] is None:
        verdict = "copying plateau, not dropped yet"
    elif second_level is not None:
        verdict = (
            f"dropped at step {found['drop']}, to a second plateau at {second_level / level:.0%} of the first"
        )
    else:
        verdict = f"dropped at step {found['drop']}"
    return Phases(
        level=level,
        copying=int(steps[on][0]),
        onset=found["onset"],
        drop=found["drop"],
        half=found["half"],
        second_level=second_level,
        second_from=second_from,
        verdict=verdict,
        column=read,
        rows=rows_where("on the copying plateau", steps, on),
    )


def _first_of_two(steps: np.ndarray, below: np.ndarray) -> int | None:
    both = np.flatnonzero(below[:-1] & below[1:])
    return int(steps[both[0]]) if len(both) else None


def _second(
    steps: np.ndarray, masked: np.ndarray, level: float, drop: int | None
) -> tuple[float | None, int | None]:
    """A level at the end: the last third of the rows since the drop, at least 6, whose halves agree."""
    if drop is None:
        return None, None
    after = steps >= drop
    count = max(int(after.sum()) // 3, 6)
    if after.sum() < count:
        return None, None
    last = masked[-count:]
    first_half, second_half = (float(np.median(part)) for part in (last[: count // 2], last[count // 2 :]))
    stays = float(np.median(last))
    if stays <= _SOLVED * level or abs(first_half - second_half) > _LEVEL_CHANGE * level:
        return None, None
    away = np.flatnonzero(np.abs(masked - stays) > _LEVEL_CHANGE * level)
    # A single noisy row is no leaving: the last two away in a row count.
    runs = away[:-1][np.diff(away) == 1] if len(away) > 1 else away[:0]
    start = int(runs[-1]) + 2 if len(runs) else 0
    return stays, int(steps[min(start, len(steps) - 1)])


__all__ = ["Phases", "completion_phases"]
