"""Find a run's loss plateau: a long stay at one loss level, ended by a drop (arXiv 2506.13688).

In words: the plateau level is the robust median of the loss between the partial solution and the drop;
the onset is the first step within 10 % of the way from the initial loss to that level; the drop is the
first step whose smoothed loss is half-way from the plateau level to the final level. Level and drop
need each other, so the algorithm tries every level and keeps the one that agrees with itself:

1.  Drop rows whose loss is missing or not finite. Smooth: running median of 3 rows (takes out spikes),
    then f = the non-increasing curve closest in least squares (isotonic regression). It adapts to noise by
    itself, and every level ℓ below f's start is crossed once: t(ℓ) = the step where f falls to ℓ, interpolated.
2.  Initial level I = f at the first row. Final level F = median of the loss over the last 2 % of the rows
    (at least 3), few because a run may be ended soon after its drop. Noise σ = the 68.3 % quantile of |loss − f|.
3.  For a level P with depth D = P − F, the stay is the time from t(P + b) to t(P − 0.1·D), and the fall the
    time from there to half-way, t(P − 0.5·D): a tail, or a small later drop, does not count.
    b = 0.1·min(I − P, D): the last 10 % of the way from I to P, where a start farther above P than the drop
    is deep counts as that far (one bad initialization would else stretch the tolerance over the whole
    plateau). b is at least 0.02·D and at least σ.
4.  Starting from 60 levels between F and I, replace P by the time-weighted median of the loss during
    P's stay until it stays the same. The levels that remain are the candidates.
5.  A candidate is a plateau if   stay ≥ 3 · fall   (`min_stay`; what falls steadily has at most 0.5),
    D ≥ 0.2 · min(I − F, P)   (`min_depth`; I − F alone where P ≤ 0),   D ≥ 8·σ   and   D·√m ≥ 50·σ,   with
    m ≥ 3 the rows in the stay: few noisy rows make stays by chance. Each ratio of value to bound is a
    score; a candidate's score s is the least of them.
6.  Of the plateaus whose stay is at least a fifth of the longest one's (shorter ones are noise in a fall) the
    lowest counts, that is the one before the last drop that is deep enough: on a staircase, the stay on
    the last step. Of candidates whose stays overlap with it, the one with the longest stay per fall is
    taken. Confidence = 1 − 1/(2s²) for s ≥ 1 (found), else s²/2 (not found).

Everything is relative, so stretching time or rescaling the loss changes nothing but the units.

A run in progress may be on a plateau whose drop has not come. There is no F then; the level is that of the last rows:

7.  P starts as the median of the last 2 % of the rows (at least 3) and is replaced by the time-weighted median of
    the loss since t(P + b), until it stays the same; b = 0.1·(I − P), at least σ.
8.  The run is on a plateau since the first row at or below P + b if that stay has at least 8 rows and lasted half
    as long as the way there, and if the loss is level: the medians of the stay's first and second half differ by at
    most 0.01·P (0.01·(I − P) where P ≤ 0), or 3·σ·√(2/m), with m the rows in each half. This is tried where no
    plateau with a drop is found. A level loss at the end of a solved run looks the same: the accuracy shows which it
    is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

_LEVELS_TRIED = 60
_MAX_ROUNDS = 30
_LEAVING = 0.1
"""The loss leaves the plateau when it has gone this share of its way down."""
_NOISE_RATIO = 8.0
_LEVEL_PRECISION = 50.0
_MIN_ROWS_IN_STAY = 3
_MIN_ROWS = 10
_MIN_ROWS_SO_FAR = 8
_LEVEL_CHANGE = 0.01
"""How much a loss that is level may change from half to half of a stay, as a share of the level."""

Array = np.ndarray


@dataclass(frozen=True)
class Plateau:
    """What `find_plateau` found. Steps are steps of the table, levels are in the unit of the loss.

    "On the plateau" are the steps from the onset to the drop, without the drop itself.

    Attributes:
        found: whether there is a plateau that ends in a drop.
        onset: first evaluated step on the plateau; None where there is none.
        drop: first evaluated step at which the smoothed loss is at least half-way down from it; None where there is
            none, and where a run in progress is on a plateau and no drop came yet (like midpoint and end).
        midpoint: (onset + drop) / 2.
        plateau_level: the loss on the plateau.
        final_level: the loss at the end of the run; None where too few losses are finite.
        confidence: from 0 to 1, at least 0.5 exactly where found; 0.5 is a borderline case.
        reason: one sentence that says why.
        end: last evaluated step before the loss leaves its level: after it, the smoothed loss has gone a tenth of its
            way down.
        column: the column of the table that was read.
    """

    found: bool
    onset: int | None
    drop: int | None
    midpoint: float | None
    plateau_level: float | None
    final_level: float | None
    confidence: float
    reason: str
    end: int | None = None
    column: str = "loss"

    @property
    def state(self) -> Literal["dropped", "no drop yet", "none"]:
        """Whether there is a plateau with its drop, one whose drop has not come yet, or none."""
        if self.found:
            return "dropped"
        return "none" if self.onset is None else "no drop yet"


NO_PLATEAU = Plateau(False, None, None, None, None, None, 0.0, "None was looked for.")


class _Curve(NamedTuple):
    """A smoothed loss curve: steps, raw loss, its non-increasing fit, and the number of steps each row covers."""

    steps: Array
    loss: Array
    fit: Array
    weight: Array
    noise: float
    initial: float
    final: float

    def row_at(self, level: float) -> int:
        """First row whose fit is at or below the level; the last row where none is."""
        return min(int(np.searchsorted(-self.fit, -level)), len(self.fit) - 1)

    def time_at(self, level: float) -> float:
        """The step at which the fit falls to the level, linear between rows."""
        row = self.row_at(level)
        if row == 0 or self.fit[row] > level:
            return float(self.steps[row])
        above, below = self.fit[row - 1], self.fit[row]
        share = (above - level) / (above - below)
        return float(self.steps[row - 1] + share * (self.steps[row] - self.steps[row - 1]))


class _Candidate(NamedTuple):
    """A level that equals the median loss of its own stay. `score` ≥ 1 makes it a plateau."""

    level: float
    onset_level: float
    start: float
    leave: float
    stay_per_fall: float
    score: float


def find_plateau(
    steps: Sequence[int] | Array,
    loss: Sequence[float | None] | Array,
    *,
    min_stay: float = 3.0,
    min_depth: float = 0.2,
    running: bool = False,
) -> Plateau:
    """Find the plateau of a loss curve and the drop that ends it, or say why there is none.

    The algorithm and its definitions are in the module's docstring. What was learned before the plateau and
    after the drop is not looked at: a curve that falls at once and then stays flat has no plateau, whether
    it stays there solved or stuck. A run that ends in the middle of its drop is judged by where it ended.

    Args:
        steps: evaluated steps, increasing, at any cadence; unequal distances are weighted by time.
        loss: loss at each of them; None, NaN and infinite values are ignored.
        min_stay: shortest stay that counts, in multiples of the time that the drop takes to half-way.
        min_depth: smallest drop that counts, as a share of the whole fall, or of the plateau level
            where that is less (a run that starts far above it).
        running: whether the run is still in progress: then a plateau without a drop so far is reported as well.

    Returns:
        A `Plateau`; `found=False` with a reason where there is none, or where fewer than 10 losses or less
        than half of them are finite.

    Raises:
        ValueError: lengths that differ, or steps that do not increase.

    Source: the phenomenon is that of arXiv 2506.13688; the paper reads plateaus off its figures, this
    definition is ours.
    """
    t = np.asarray(steps, dtype=float)
    y = np.asarray(loss, dtype=float)
    if t.ndim != 1 or t.shape != y.shape:
        raise ValueError(f"find_plateau: expected one loss for each step; got shapes {t.shape} and {y.shape}")
    if not (np.diff(t) > 0).all():
        raise ValueError(
            "find_plateau: expected increasing steps; got a repeated or earlier one; sort the table"
        )
    finite = np.isfinite(y)
    if (too_few := _too_few(finite)) is not None:
        return too_few
    curve = _smooth(t[finite], y[finite])
    whole_fall = curve.initial - curve.final
    if whole_fall <= _NOISE_RATIO * curve.noise:
        return (_on_a_plateau_now(curve) if running else None) or _none(
            f"The loss never drops: it starts at {curve.initial:.4g} and ends at {curve.final:.4g}, "
            f"a difference lost in its noise of {curve.noise:.2g}.",
            curve.final,
        )
    candidates = _candidates(curve, min_stay, min_depth)
    plateaus = [c for c in candidates if c.score >= 1]
    if not plateaus:
        return (_on_a_plateau_now(curve) if running else None) or _not_found(curve, candidates, min_stay)

    return _found(curve, plateaus)


def _too_few(finite: Array) -> Plateau | None:
    """Why so few finite losses show nothing; None: they are enough."""
    n_finite = int(finite.sum())
    if n_finite < _MIN_ROWS:
        recorded = "loss was" if n_finite == 1 else "losses were"
        return _none(
            f"Only {n_finite} finite {recorded} recorded; at least {_MIN_ROWS} are needed to find a plateau."
        )
    if 2 * n_finite < len(finite):
        return _none(f"Only {n_finite} of {len(finite)} losses are finite, less than half of them.")
    return None


def _found(curve: _Curve, plateaus: Sequence[_Candidate]) -> Plateau:
    """The lowest of the long plateaus; of those that share its steps, the one whose fall is the sharpest."""
    longest = max(c.leave - c.start for c in plateaus)
    lowest = min((c for c in plateaus if c.leave - c.start >= longest / 5), key=lambda c: c.level)
    same = [c for c in plateaus if c.start < lowest.leave and c.leave > lowest.start]
    best = max(same, key=lambda c: c.stay_per_fall)
    onset = int(curve.steps[curve.row_at(best.onset_level)])
    end = int(curve.steps[curve.row_at(best.level - _LEAVING * (best.level - curve.final)) - 1])
    drop = int(curve.steps[curve.row_at((best.level + curve.final) / 2)])
    return Plateau(
        found=True,
        onset=onset,
        drop=drop,
        midpoint=(onset + drop) / 2,
        plateau_level=best.level,
        final_level=curve.final,
        confidence=_confidence(best.score),
        reason=f"The loss is on a plateau near {best.level:.4g} from step {onset} to its drop at step {drop}, when it "
        f"is half-way to {curve.final:.4g}; it leaves that level after step {end}, a stay {best.stay_per_fall:.1f} "
        "times as long as the fall.",
        end=end,
    )


def first_below(
    steps: Sequence[int] | Array, loss: Sequence[float | None] | Array, level: float
) -> int | None:
    """First evaluated step at which the loss, smoothed as in `find_plateau`, is at a level or below; None: never."""
    t, y = np.asarray(steps, dtype=float), np.asarray(loss, dtype=float)
    finite = np.isfinite(y)
    if not finite.any():
        return None
    curve = _smooth(t[finite], y[finite])
    row = curve.row_at(level)
    return int(curve.steps[row]) if curve.fit[row] <= level else None


def _smooth(steps: Array, loss: Array) -> _Curve:
    """Steps 1 and 2."""
    despiked = loss.copy()
    despiked[1:-1] = np.median(np.stack([loss[:-2], loss[1:-1], loss[2:]]), axis=0)
    fit = _non_increasing(despiked)
    n_last = max(3, len(loss) // 50)
    return _Curve(
        steps=steps,
        loss=loss,
        fit=fit,
        weight=np.gradient(steps) if len(steps) > 1 else np.ones(1),
        noise=float(np.quantile(np.abs(loss - fit), 0.683)),
        initial=float(fit[0]),
        final=float(np.median(loss[-n_last:])),
    )


def _non_increasing(values: Array) -> Array:
    """The non-increasing sequence nearest in least squares: pool adjacent violators."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values.tolist():
        mean, size = value, 1
        while means and means[-1] <= mean:
            size_before = sizes.pop()
            mean = (means.pop() * size_before + mean * size) / (size_before + size)
            size += size_before
        means.append(mean)
        sizes.append(size)
    return np.repeat(means, sizes)


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(cumulative, cumulative[-1] / 2)]])


def _candidates(curve: _Curve, min_stay: float, min_depth: float) -> list[_Candidate]:
    """Steps 3 to 5."""
    whole_fall = curve.initial - curve.final
    visited: set[float] = set()
    found: list[_Candidate] = []
    for start_level in curve.final + whole_fall * np.geomspace(1, 0.02, _LEVELS_TRIED):
        level = float(start_level)
        for _ in range(_MAX_ROUNDS):
            # A median is one of the losses, so searches run into each other: follow each path once.
            if level <= curve.final or level in visited:
                break
            visited.add(level)
            depth = level - curve.final
            tolerance = max(0.1 * min(curve.initial - level, depth), 0.02 * depth, curve.noise)
            start, leave = curve.time_at(level + tolerance), curve.time_at(level - _LEAVING * depth)
            during = (curve.steps >= start) & (curve.steps <= leave)
            if not during.any():
                break
            median = _weighted_median(curve.loss[during], curve.weight[during])
            if median == level:
                fall = curve.time_at(level - 0.5 * depth) - leave
                stay_per_fall = (leave - start) / fall if fall > 0 else 0.0
                reference = min(whole_fall, level) if level > 0 else whole_fall
                n_rows = int(during.sum())
                signal_to_noise = depth / curve.noise if curve.noise > 0 else np.inf
                score = min(
                    stay_per_fall / min_stay,
                    depth / (min_depth * reference),
                    signal_to_noise / _NOISE_RATIO,
                    signal_to_noise * n_rows**0.5 / _LEVEL_PRECISION,
                    n_rows / _MIN_ROWS_IN_STAY,
                )
                found.append(_Candidate(level, level + tolerance, start, leave, stay_per_fall, float(score)))
                break
            level = median
    return found


def _on_a_plateau_now(curve: _Curve) -> Plateau | None:
    """Steps 7 and 8."""
    level = curve.final
    for _ in range(_MAX_ROUNDS):
        start = curve.time_at(level + max(_LEAVING * (curve.initial - level), curve.noise))
        during = curve.steps >= start
        median = _weighted_median(curve.loss[during], curve.weight[during])
        if median == level:
            break
        level = median
    first, last = curve.steps[0], curve.steps[-1]
    rows, half = int(during.sum()), int(during.sum()) // 2
    if rows < _MIN_ROWS_SO_FAR or last - start < (start - first) / 2:
        return None
    stay = curve.loss[during]
    change = abs(float(np.median(stay[:half]) - np.median(stay[-half:])))
    scale = level if level > 0 else curve.initial - level
    if change > max(_LEVEL_CHANGE * scale, 3 * curve.noise * (2 / half) ** 0.5):
        return None
    since = int(curve.steps[during][0])
    return Plateau(
        False, since, None, None, level, None, 0.0,
        f"The loss is on a plateau near {level:.4g} since step {since}, no drop yet up to step {last:.0f}.",
    )  # fmt: skip


def _confidence(score: float) -> float:
    return 1 - 0.5 / score**2 if score >= 1 else 0.5 * score**2


def _none(reason: str, final_level: float | None = None, confidence: float = 0.0) -> Plateau:
    return Plateau(False, None, None, None, None, final_level, confidence, reason)


def _not_found(curve: _Curve, candidates: list[_Candidate], min_stay: float) -> Plateau:
    """Say which kind of curve without a plateau this is: one that settles early, or one that keeps falling."""
    best = max(candidates, key=lambda c: c.score, default=None)
    confidence = _confidence(best.score) if best else 0.0
    first, last = curve.steps[0], curve.steps[-1]
    settled = curve.time_at(curve.final + 0.2 * (curve.initial - curve.final))
    if settled <= first + 2 / 3 * (last - first):
        reason = (
            f"The loss comes near {curve.final:.4g} by step {settled:.0f} and never drops again, "
            "and nowhere before did it stay at a level long enough."
        )
    else:
        longest = best.stay_per_fall if best else 0.0
        reason = (
            f"The loss falls from {curve.initial:.4g} to {curve.final:.4g} without a lasting stay: the "
            f"longest takes {longest:.1f} times as long as the fall to half-way after it, a plateau {min_stay:g} times."
        )
    return _none(reason, curve.final, confidence)
