"""Stages of training: where a curve turns or pauses, on a logarithmic clock.

1.  x = log(step + 1), from `start` on; y is the column in units of its own standard deviation, mean 0, and without its
    straight line over x.
2.  A Gaussian process with a kernel exp(−Δx²/2·length²) and noise of variance `noise` gives the curve f and, in closed
    form, its slope. It pulls towards the line, more where points are few; what it leaves over is fitted again, 20
    times, which takes that pull out. All is linear in y, so with the noise σ that is left over at last, the curve and
    its slope have standard errors.
3.  Candidates: where the slope crosses 0, and where its magnitude has a minimum below `tolerance`. The first `drop` of
    x and the last fifth of a `length` are left out, and every gap between points that is wider than half a `length`.
4.  Between two boundaries, and off both ends, the curve must move: by `min_change` standard deviations and by 3
    errors. While an interval is short of that, the shortest one goes: its two ends become one boundary with several
    places, and a place without a neighbor is dropped. What only rises or only falls, without a pause, has no
    boundary; nor has a constant.
5.  Places of one boundary within `merge` of x become one.

The stretch of a place is the part around it on which the slope does not differ significantly from the one there (90 %).

Limits: on a curve that only rises or falls, noise of a hundredth of its range can make boundaries, sometimes `certain`
ones. With a short `length` (0.3) and points at equal steps, a very sharp rise such as exp(x) has one even without
noise. Look at the curve, and compare it with the loss's own boundaries.

Source: arXiv 2402.02364, whose process has no noise term. Fitting again, gaps and step 4 are ours: without them
straight lines have boundaries. The paper's regression curves have length 0.5 and noise 0.03, its language curves 0.3
and 0.02.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from mechplateau.errors import UserError, counted

_GRID = 1000
_LEAST_POINTS = 6
_TOLD_APART = 1.645  # 90 %, both sides
_ERRORS_MOVED = 3.0
_REFITS = 20
_SOME = 12
"""Columns that are told to somebody who asked for another."""

Array = np.ndarray


@dataclass(frozen=True)
class Boundary:
    """The end of one stage and the beginning of the next.

    Attributes:
        step: where.
        low, high: the stretch on which the slope does not differ significantly from that at `step` (90 %), in steps.
        kind: `"turn"` where the slope crosses 0, `"pause"` where it only nears it.
        slope: there, in units of the column per unit of log step.
        group: which boundary this place belongs to, counted from 0: a long pause can have several.
        certain: a turn, or a pause whose slope differs by 3 errors from the steepest one on either side; of others
            it is unknown whether they are more than noise.
    """

    step: float
    low: float
    high: float
    kind: str
    slope: float
    group: int
    certain: bool


@dataclass(frozen=True)
class Stages:
    """The stages of one column.

    Attributes:
        column: its name.
        boundaries: in the order of steps; empty where there is none.
        noise: standard deviation of what the process leaves over, in the column's unit; None where it was not fitted.
        note: why there is none, in words; None where there are some.
    """

    column: str
    boundaries: tuple[Boundary, ...]
    noise: float | None
    note: str | None

    def __str__(self) -> str:
        if not self.boundaries:
            return f"{self.column}: None ({self.note})"
        return f"{self.column}: " + ", ".join(
            f"{b.step:.0f} ({b.low:.0f} to {b.high:.0f})" for b in self.boundaries
        )


@dataclass(frozen=True)
class StagesBesideLoss:
    """A column's stages, and the loss's own, found in the same way.

    Attributes:
        column: the column's.
        loss: the loss's; the same object where the column is the loss.
        near: how far apart two steps may be to count as one boundary, as a share of the step.
    """

    column: Stages
    loss: Stages
    near: float = 0.25

    @property
    def table(self) -> pd.DataFrame:
        """One line a boundary: of, step, low, high, kind, slope, group, certain, and whether the loss has one
        near it (within a quarter of its step)."""
        lines = []
        for found in dict.fromkeys((self.column, self.loss)):
            for b in found.boundaries:
                near = any(abs(own.step - b.step) <= self.near * own.step for own in self.loss.boundaries)
                lines.append((found.column, b.step, b.low, b.high, b.kind, b.slope, b.group, b.certain, near))
        names = ["of", "step", "low", "high", "kind", "slope", "group", "certain", "in_loss"]
        return pd.DataFrame(lines, columns=names)

    def __str__(self) -> str:
        return "\n".join(str(found) for found in dict.fromkeys((self.column, self.loss)))


def stages(
    table: pd.DataFrame,
    column: str,
    *,
    loss: str = "loss",
    step: str = "step",
    length: float = 0.5,
    noise: float = 0.03,
    tolerance: float = 0.15,
    start: float = 100,
    drop: float = 0.3,
    merge: float = 0.25,
    min_change: float = 0.05,
) -> StagesBesideLoss:
    """Find the stages of a column of one run's table, and those of its loss.

    Args:
        table: one row a checkpoint, of a single run.
        column: any column of numbers; rows where it is missing are left out.
        loss: the loss's column, whose own stages are found as well.
        step: the column of steps.
        length: of the kernel, in units of log step: bends shorter than this are smoothed away.
        noise: variance of the noise, in squared standard deviations of the column.
        tolerance: slopes below this count as a pause, in standard deviations of the column per unit of log step.
        start: steps before this one are left out.
        drop: how much of log step after `start` has no boundary.
        merge: places of one boundary nearer than this in log step are one.
        min_change: how far the curve moves between boundaries, in its standard deviations.

    Raises:
        UserError: a column that is not there or holds no numbers, steps that do not rise, settings that make no sense.
    """
    for name, value in (("length", length), ("noise", noise), ("tolerance", tolerance)):
        if not value > 0:
            raise UserError(f"{name}: expected a number above 0, got {value}")
    method = _Method(length, noise, tolerance, drop, merge, min_change)
    own = _stages(table, column, step, start, method)
    return StagesBesideLoss(own, own if column == loss else _stages(table, loss, step, start, method))


def slopes(
    table: pd.DataFrame,
    column: str,
    *,
    step: str = "step",
    length: float = 0.5,
    noise: float = 0.03,
    start: float = 100,
) -> pd.DataFrame:
    """The smooth curve that `stages` looks at, and its slope; arguments as there.

    Returns:
        one line a place on a fine grid: step, value (the column's unit), slope and slope_error (the unit per unit of
        log step). No line where there are too few points, or the column is constant.

    Raises:
        UserError: as `stages`.
    """
    steps, values = _series(table, column, step, start)
    names = ["step", "value", "slope", "slope_error"]
    if len(values) < _LEAST_POINTS or values.std() <= 1e-12 * max(1.0, abs(float(values.mean()))):
        return pd.DataFrame(columns=names, dtype=float)
    sd, method = float(values.std()), _Method(length, noise, 0.0, 0.0, 0.0, 0.0)
    curve = _Curve(np.log(steps + 1), (values - values.mean()) / sd, method)
    found = (
        np.exp(curve.grid) - 1,
        curve.value * sd + values.mean(),
        curve.slope * sd,
        curve.slope_error * sd,
    )
    return pd.DataFrame(dict(zip(names, found, strict=True)))


@dataclass(frozen=True)
class _Method:
    length: float
    noise: float
    tolerance: float
    drop: float
    merge: float
    min_change: float


def _stages(table: pd.DataFrame, column: str, step: str, start: float, method: _Method) -> Stages:
    steps, values = _series(table, column, step, start)
    if len(values) < _LEAST_POINTS:
        return Stages(
            column, (), None, f"{counted(len(values), 'point')} from step {start:g} on, too few to tell"
        )
    sd = float(values.std())
    if sd <= 1e-12 * max(1.0, abs(float(values.mean()))):
        return Stages(column, (), 0.0, "constant")
    curve = _Curve(np.log(steps + 1), (values - values.mean()) / sd, method)
    found = _boundaries(curve, method)
    boundaries = tuple(
        Boundary(
            step=float(np.exp(curve.grid[place]) - 1),
            low=float(np.exp(curve.grid[low]) - 1),
            high=float(np.exp(curve.grid[high]) - 1),
            kind=kind,
            slope=float(curve.slope[place]) * sd,
            group=group,
            certain=certain,
        )
        for place, low, high, kind, group, certain in found
    )
    note = None if boundaries else "it neither turns nor pauses on the way"
    return Stages(column, boundaries, curve.sigma * sd, note)


def _series(table: pd.DataFrame, column: str, step: str, start: float) -> tuple[Array, Array]:
    for name in (step, column):
        if name not in table.columns:
            there = [str(other) for other in table.columns]
            if len(there) > _SOME:  # those that may be meant, if there are some
                there = [*(difflib.get_close_matches(str(name), there) or there[:_SOME]), "…"]
            raise UserError(f"no column {name!r}; this table has {', '.join(there)}")
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise UserError(f"{name}: expected a column of numbers, got {table[name].dtype}")
    steps = table[step].to_numpy(dtype=np.float64, na_value=np.nan)
    values = table[column].to_numpy(dtype=np.float64, na_value=np.nan)
    use = np.isfinite(steps) & np.isfinite(values) & (steps >= start)
    steps, values = steps[use], values[use]
    if (np.diff(steps) <= 0).any():
        raise UserError(
            f"{step}: expected steps that rise, those of a single run; take one run of this table"
        )
    return steps, values


class _Curve:
    """The fitted curve on a grid of log steps, with its slope and the errors of both."""

    def __init__(self, x: Array, y: Array, method: _Method):
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF

        process = GaussianProcessRegressor(RBF(method.length), alpha=method.noise, optimizer=None)
        trend = np.polyfit(x, y, 1)
        y = y - np.polyval(trend, x)
        process.fit(x[:, None], y)
        inverse = np.linalg.inv(process.L_)
        inverse = inverse.T @ inverse  # of K + noise
        at_points = process.kernel_(x[:, None]) @ inverse
        self.grid = np.linspace(min(x[0] + method.drop, x[-1]), x[-1], _GRID)
        self.inside = self.grid <= x[-1] - 0.2 * method.length
        away = self.grid[:, None] - x
        kernel = np.exp(-(away**2) / (2 * method.length**2))
        remaining = np.eye(len(x)) - at_points
        again = np.eye(len(x))
        for _ in range(_REFITS):
            again = np.eye(len(x)) + remaining @ again
        smoothed = at_points @ again
        left = y - smoothed @ y
        self.sigma = float(np.sqrt(left @ left / max(len(x) - float(np.trace(smoothed)), 1.0)))
        self._weights = kernel @ inverse @ again
        slope_weights = (-away / method.length**2 * kernel) @ inverse @ again
        self.value = self._weights @ y + np.polyval(trend, self.grid)
        self.slope = slope_weights @ y + trend[0]
        self.slope_error = self.sigma * np.linalg.norm(slope_weights, axis=1)
        self._slope_weights = slope_weights
        after = np.clip(np.searchsorted(x, self.grid), 1, len(x) - 1)
        self.resolved = x[after] - x[after - 1] <= 0.5 * method.length

    def moved_enough(self, a: int, b: int, least: float) -> float:
        """How far the curve moves between two places, over how far it must: 1 or more is enough."""
        error = self.sigma * float(np.linalg.norm(self._weights[a] - self._weights[b]))
        return abs(float(self.value[a] - self.value[b])) / max(least, _ERRORS_MOVED * error)

    def slowing(self, place: int, before: int, after: int) -> float:
        """By how many errors the slope at a place differs from the steepest one on either side, the lesser of both.

        Each side ends at the neighbor given.
        """
        size = np.abs(self.slope)
        told = []
        for first, last in ((before, place), (place, after)):
            steepest = first + int(size[first : last + 1].argmax())
            error = self.sigma * float(
                np.linalg.norm(self._slope_weights[steepest] - self._slope_weights[place])
            )
            told.append(abs(float(self.slope[steepest] - self.slope[place])) / max(error, 1e-12))
        return min(told)


def _boundaries(curve: _Curve, method: _Method) -> list[tuple[int, int, int, str, int, bool]]:
    """Place, its stretch, kind, group and certainty of each boundary."""
    slope, size = curve.slope, np.abs(curve.slope)
    turns = {
        int(i) if size[i] <= size[i + 1] else int(i) + 1 for i in np.flatnonzero(slope[:-1] * slope[1:] < 0)
    }
    inner = np.arange(1, _GRID - 1)
    low = (
        (size[inner] <= size[inner - 1]) & (size[inner] < size[inner + 1]) & (size[inner] < method.tolerance)
    )
    places = sorted(turns | {int(i) for i in inner[low]})
    places = [place for place in places if curve.resolved[place] and curve.inside[place]]
    around = [0, *places, _GRID - 1]
    slowing = {p: curve.slowing(p, a, b) for a, p, b in zip(around, places, around[2:], strict=False)}
    groups = _grouped(curve, places, method.min_change)
    found = []
    for number, members in enumerate(groups):
        for near in _merged(curve.grid, members, method.merge):
            place = int(np.abs(curve.grid - np.mean([curve.grid[i] for i in near])).argmin())
            flat = size <= size[place] + _TOLD_APART * curve.slope_error
            left, right = min(near[0], place), max(near[-1], place)
            while left > 0 and flat[left - 1]:
                left -= 1
            while right < _GRID - 1 and flat[right + 1]:
                right += 1
            turn = any(i in turns for i in near)
            certain = turn or max(slowing[i] for i in near) >= _ERRORS_MOVED
            found.append((place, left, right, "turn" if turn else "pause", number, certain))
    return found


def _grouped(curve: _Curve, places: list[int], least: float) -> list[list[int]]:
    """Places in groups between which the curve moves; what does not move off an end is dropped."""
    groups = [[place] for place in places]
    while groups:
        edges = [[0], *groups, [_GRID - 1]]
        moves = [curve.moved_enough(a[-1], b[0], least) for a, b in pairwise(edges)]
        short = int(np.argmin(moves))
        if moves[short] >= 1:
            break
        if short == 0:
            groups[0] = groups[0][1:]
        elif short == len(groups):
            groups[-1] = groups[-1][:-1]
        else:
            groups[short - 1 : short + 1] = [groups[short - 1] + groups[short]]
        groups = [group for group in groups if group]
    return groups


def _merged(grid: Array, members: list[int], merge: float) -> list[list[int]]:
    near: list[list[int]] = []
    for member in members:
        if near and grid[member] - grid[near[-1][-1]] < merge:
            near[-1].append(member)
        else:
            near.append([member])
    return near
