"""Stage, step and tokens, parsed from a checkpoint's name; names are never composed.

Published series name their checkpoints in several ways (`step512`, `stage1-step150-tokens1B`, `checkpoint-500`), and
people theirs (`ckpt-500`, `step=1000`, `step1k`, or the bare number). The names are taken from the hub or from a folder
as they are; a requested step that is not among them is a gap with a name, and so is a hole in an otherwise
regular grid of steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from mechplateau.errors import ConfigError

FINAL_LABELS = ("main", "final")
"""Names under which a series keeps its last, published weights."""

_NAME = re.compile(
    r"(?:stage(?P<stage>\d+)-)?(?:ingredient(?P<ingredient>\d+)-)?"
    r"(?i:(?:global[-_]?)?step|checkpoint|ckpt|iter(?:ation)?)[-_=]?(?P<step>\d+)(?P<thousands>[kKmM]?)"
    r"(?:-tokens(?P<tokens>\d+)(?P<unit>[MBT]?))?"
)
_NUMBER = re.compile(r"\d+")
_UNIT = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
LARGEST = 2**63 - 1
"""A table's integers end here; no training run comes near."""
_DIGITS = 300
"""More than any name of a file has: Python refuses to read numbers of thousands of digits."""


@dataclass(frozen=True)
class Revision:
    """One checkpoint of a series, as its name describes it."""

    label: str
    """The name of the branch, tag or folder, unchanged."""
    step: int | None
    """Number of updates; None for the final weights (`main`), whose name gives no step."""
    stage: int | None = None
    ingredient: int | None = None
    """Which of several parallel runs of a stage (OLMo-2's second stage)."""
    tokens: int | None = None
    """Tokens seen, as far as the name is precise (`tokens1B` is a rounded number)."""

    @property
    def group(self) -> tuple[int, int]:
        """Steps are comparable inside one group only: the stage, then the ingredient (0 where unnamed)."""
        return (self.stage or 0, self.ingredient or 0)


def parse_revision(label: str) -> Revision | None:
    """The revision that a name describes, or None where it describes no step of a series."""
    if label in FINAL_LABELS:
        return Revision(label, None)
    if len(label) > _DIGITS:
        return None
    if _NUMBER.fullmatch(label):
        return Revision(label, int(label)) if int(label) <= LARGEST else None
    match = _NAME.fullmatch(label)
    if match is None:
        return None
    part = match.groupdict()
    numbers = {
        name: int(part[name]) if part[name] else None for name in ("step", "stage", "ingredient", "tokens")
    }
    for name, unit in (("step", "thousands"), ("tokens", "unit")):
        if (number := numbers[name]) is not None:
            numbers[name] = number * _UNIT[part[unit].upper()]
    if any(number is not None and number > LARGEST for number in numbers.values()):
        return None
    return Revision(label, **numbers)


@dataclass(frozen=True)
class Listing:
    """The revisions of one series, sorted by step, and what was set aside."""

    revisions: tuple[Revision, ...]
    final: Revision | None
    """The revision that keeps the published weights under a name without a step, if there is one."""
    left_out: tuple[str, ...] = ()
    """Names of other stages: their steps count from another start."""
    nameless: tuple[str, ...] = ()
    """Names that describe no step, or the final weights a second time."""


STEP_NAMES = "step512, checkpoint-500, ckpt-500, step=1000, step1k, 1000 or stage1-step150-tokens1B"
"""Names that are understood, for messages."""


def arrange(labels: Iterable[str], *, stage: int | None = None, source: str = "the series") -> Listing:
    """Parse names, keep one stage (the first there is unless `stage` is given) and sort by step.

    Names that describe no step are set aside, and so are bare numbers where other names have the word: `20240131`
    beside `step512` is a date. Repetitions (a branch and a tag of one name) count once.

    Raises:
        ConfigError: `stage` is not there, or two names have the same step.
    """
    names = sorted(set(labels))
    parsed = [revision for label in names if (revision := parse_revision(label)) is not None]
    steps = [revision for revision in parsed if revision.step is not None]
    worded = [revision for revision in steps if not _NUMBER.fullmatch(revision.label)]
    steps = worded or steps
    finals = {revision.label: revision for revision in parsed if revision.step is None}
    final = next((finals[label] for label in FINAL_LABELS if label in finals), None)
    groups = sorted({revision.group for revision in steps})
    if stage is not None:
        groups = [group for group in groups if group[0] == stage]
        if not groups:
            there = sorted({revision.stage for revision in steps if revision.stage is not None})
            raise ConfigError(f"stage: {source} has no stage {stage}; stages there: {there or 'none'}")
    chosen = sorted((r for r in steps if groups and r.group == groups[0]), key=lambda r: r.step or 0)
    for one, other in pairwise(chosen):
        if one.step == other.step:
            raise ConfigError(
                f"{source}: {one.label!r} and {other.label!r} are both step {one.step}; keep one of them"
            )
    left_out = tuple(r.label for r in steps if r not in chosen)
    known = {revision.label for revision in (*steps, *([final] if final is not None else []))}
    return Listing(tuple(chosen), final, left_out, tuple(sorted(set(names) - known)))


def found(names: Sequence[str]) -> str:
    """The names that were found instead, a few of them in words."""
    if not names:
        return "found none"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return "found " + ", ".join(repr(name) for name in names[:4]) + more


@dataclass(frozen=True)
class StepChoice:
    """Which steps of a series to look at: all, or single steps and ranges."""

    exact: tuple[int, ...] = ()
    """Steps requested by number: one that is not there is a gap."""
    ranges: tuple[tuple[int, int], ...] = ()
    """First and last step of a range: whatever is there in between."""
    everything: bool = False

    @classmethod
    def parse(cls, text: str) -> StepChoice:
        """Read `all`, or numbers and ranges such as `0,1,2,1000-4000`.

        Raises:
            ConfigError: the text is none of these.
        """
        if text.strip() == "all":
            return cls(everything=True)
        exact, ranges = [], []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
            if match is None:
                raise ConfigError(
                    f"steps: expected all, or numbers and ranges such as 0,1,2,1000-4000; got {text!r}"
                )
            first, last = match.groups()
            if any(len(number) > _DIGITS or int(number) > LARGEST for number in match.groups("0")):
                raise ConfigError(f"steps: expected numbers up to {LARGEST}, got {part.strip()[:80]!r}")
            if last is None:
                exact.append(int(first))
            elif int(first) <= int(last):
                ranges.append((int(first), int(last)))
            else:
                raise ConfigError(f"steps: the range {first}-{last} runs backwards")
        return cls(tuple(exact), tuple(ranges))

    def pick(self, revisions: Sequence[Revision]) -> tuple[list[Revision], list[int]]:
        """The chosen revisions, in the order given, and the steps requested by number that are not there."""
        picked = [
            revision
            for revision in revisions
            if revision.step is not None
            and (
                self.everything
                or revision.step in self.exact
                or any(first <= revision.step <= last for first, last in self.ranges)
            )
        ]
        there = {revision.step for revision in revisions}
        return picked, sorted(set(self.exact) - there)


def missing_steps(steps: Sequence[int]) -> list[int]:
    """Steps that the spacing of the others says should be there.

    Two readings, both of them conservative. (1) All steps above 0 lie on one geometric grid s·rᵏ and at least
    half of its places between the first and the last are taken: the free places. (2) The two intervals on one
    side of an interval and the one on its other side have the same difference δ, or the same ratio r, and the
    interval is 2 or 3 times δ (r² or r³): the places in it.

    Args:
        steps: distinct steps in rising order.
    """
    grid = _geometric_grid([step for step in steps if step > 0])
    if grid is not None:
        return [step for step in grid if step not in steps]
    intervals = list(pairwise(steps))
    missing: list[int] = []
    for i, interval in enumerate(intervals):
        for before, after in ((2, 1), (1, 2)):
            around = intervals[max(0, i - before) : i] + intervals[i + 1 : i + 1 + after]
            if len(around) == before + after and (places := _places_between(interval, around)):
                missing.extend(places)
                break
    return missing


def _places_between(interval: tuple[int, int], around: Sequence[tuple[int, int]]) -> list[int]:
    """Places of the regular spacing of `around` inside an interval 2 or 3 times as long; else none."""
    start, end = interval
    deltas = {b - a for a, b in around}
    if len(deltas) == 1:
        delta = deltas.pop()
        return list(range(start + delta, end, delta)) if end - start in (2 * delta, 3 * delta) else []
    if start == 0 or any(a == 0 or b % a for a, b in around):
        return []
    ratios = {b // a for a, b in around}
    if len(ratios) > 1:
        return []
    ratio = ratios.pop()
    return {start * ratio**2: [start * ratio], start * ratio**3: [start * ratio, start * ratio**2]}.get(
        end, []
    )


def _geometric_grid(steps: Sequence[int]) -> list[int] | None:
    """All places s·rᵏ between the first and the last step, if the steps lie on such a grid and half fill
    it."""
    if len(steps) < 4:
        return None
    first = steps[0]
    ratios = [step // first for step in steps[1:]]
    if any(step % first for step in steps[1:]):
        return None
    base = min(ratios)
    # The ratio of the grid is the largest number whose powers give all of them: try the roots of the
    # smallest.
    for root in range(2, base + 1):
        powers = [_exponent(ratio, root) for ratio in ratios]
        if None in powers:
            continue
        exponents = [power for power in powers if power is not None]
        stride = gcd(*exponents)
        ratio = root**stride
        places = [first * ratio**k for k in range(max(exponents) // stride + 1)]
        return places if 2 * len(steps) >= len(places) else None
    return None


def _exponent(value: int, root: int) -> int | None:
    """k with rootᵏ = value, or None."""
    k = 0
    while value % root == 0:
        value //= root
        k += 1
    return k if value == 1 else None
