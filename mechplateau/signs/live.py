"""Is a run in progress on its plateau? The answer is given row by row, and later rows never change it.

`finder` tells of the rows so far whether there is a plateau, and since when; of few rows it says so lightly, and with
more rows it may think better of it. What acts on the answer (`checkpoints.from_onset_every`) waits until

1.  there are at least 12 rows;
2.  the loss has been below 0.97·L₀ once, with L₀ the loss of the first row (a run that has learned nothing yet is on no
    plateau), and is above 0.2·L₀ (a run that has learned nearly everything is on none);
3.  the plateau has lasted at least three quarters of the time that the way to its onset took;
4.  all of this holds at three rows in a row.

All rows are looked at again whenever there are a twentieth more of them, and at the next row where 1 to 3 hold.

A short stay counts, too, while it lasts: the authors' curve of moving window sums, measured at every step, stays at one
level from step 11 to step 60 and leaves it for the partial solution; the plateau before its drop begins at step 72.
"""

from __future__ import annotations

import math

from mechplateau.signs.finder import find_plateau

_MIN_ROWS = 12
_IN_A_ROW = 3
_STAY = 0.75
_BEGUN = 0.97
_NEARLY_ALL = 0.2


class LivePlateau:
    """Takes in the rows of a run, in order.

    Attributes:
        seen: the step of the first row at which the run was found to be on its plateau; None: not yet.
    """

    def __init__(self) -> None:
        self.seen: int | None = None
        self._steps: list[int] = []
        self._losses: list[float] = []
        self._in_a_row, self._looks_at = 0, _MIN_ROWS

    def note(self, step: int, loss: float | None) -> None:
        """Take in the next row; one whose loss is missing or not finite says nothing."""
        if self.seen is not None or loss is None or not math.isfinite(loss):
            return
        self._steps.append(step)
        self._losses.append(loss)
        if len(self._steps) < self._looks_at:
            return
        if not self._on_a_plateau():
            self._in_a_row, self._looks_at = 0, len(self._steps) + math.ceil(len(self._steps) / 20)
            return
        self._in_a_row += 1
        if self._in_a_row == _IN_A_ROW:
            self.seen = step

    def _on_a_plateau(self) -> bool:
        """Conditions 2 and 3, at the last row."""
        first, last = self._losses[0], self._losses[-1]
        if min(self._losses) >= _BEGUN * first or last <= _NEARLY_ALL * first:
            return False
        onset = find_plateau(self._steps, self._losses, running=True).onset
        return onset is not None and self._steps[-1] - onset >= _STAY * (onset - self._steps[0]) > 0


__all__ = ["LivePlateau"]
