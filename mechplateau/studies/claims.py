"""Claims: sentences of a paper, each as a number of runs and the range that it must lie in.

A claim is checked on the numbers of one recipe's runs, one a seed, or on their ratio to the same number of another
recipe: of its run of the same seed, or where there is none, the median over its seeds. It holds where the median over
seeds lies in the range, and so do at least half of the runs: a run without the number does not. With fewer seeds than
the claim needs, it holds or fails so far; with the number defined in fewer than half of them, it is undefined.

Claims are written before the runs that judge them. A later change is a `Change`, and stays visible.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from mechplateau.studies.numbers import Numbers
from mechplateau.studies.recipes import PAPER

Verdict = Literal["holds", "fails", "holds so far", "fails so far", "undefined", "not yet run"]
Range = tuple[float | None, float | None]
"""Lower and upper bound; None: no bound."""
Summaries = Mapping[str, Sequence[Numbers]]
"""Recipe → the numbers of its runs, one a seed."""

OURS = "ours"
"""The source of a range that no paper gives: what would have to be seen for the sentence to be true."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What was changed in a claim, or in what its number is, after runs had been seen.

    Attributes:
        after: how many runs had been seen.
        was: the earlier text or range.
        because: why it was changed.
    """

    after: int
    was: str
    because: str

    def __str__(self) -> str:
        runs = "1 run" if self.after == 1 else f"{self.after} runs"
        return f"changed after {runs}, because {self.because}; was: {self.was}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence that a number can contradict.

    Attributes:
        study: the study it belongs to.
        id: unique in the study, and for good: a range that is changed keeps its id.
        figure: the figure that it belongs to.
        text: the sentence.
        recipe: the set-up: whose runs are looked at.
        number: which of their numbers.
        over: a recipe to whose same number it is compared, as a ratio.
        low, high: the range in which it is true; None: no bound.
        at: scale → another range there.
        paper: what the paper, or its authors' code, says, in its words or numbers; "" where it gives none.
        source: which of them says it.
        seeds: how many seeds, counted from 0, decide it.
        changes: what in it was changed after runs had been seen, oldest first.

    Raises:
        ValueError: a range that nothing could contradict, no seed, or a source without what it says, or the other way
            round.
    """

    study: str
    id: str
    figure: str
    text: str
    recipe: str
    number: str
    over: str | None = None
    low: float | None = None
    high: float | None = None
    at: Mapping[str, Range] = field(default_factory=dict)
    paper: str = ""
    source: str = OURS
    seeds: int = 1
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        for low, high in ((self.low, self.high), *self.at.values()):
            if low is None and high is None:
                raise ValueError(
                    f"claim {self.id}: expected a range, got no bound, which nothing could contradict"
                )
        if self.seeds < 1:
            raise ValueError(f"claim {self.id}: expected at least one seed, got {self.seeds}")
        if bool(self.paper) != (self.source != OURS):
            raise ValueError(
                f"claim {self.id}: expected a source for what the paper says, and for nothing else"
            )

    def range(self, scale: str) -> Range:
        """Lower and upper bound at this scale."""
        return self.at.get(scale, (self.low, self.high))

    @property
    def paper_value(self) -> float | None:
        """The number that the paper says, where it says one: `step 192` and `about 0.6`, not `like the baseline`."""
        said = re.fullmatch(r"(?:about |right from )?(?:step )?(\d+(?:\.\d+)?)", self.paper)
        return None if said is None else float(said[1])

    @property
    def measured(self) -> str:
        """What is measured, in words: the number, and of what."""
        return f"{self.number} of {self.recipe}" + (f" / {self.over}" if self.over else "")


@dataclass(frozen=True)
class Outcome:
    """A claim and what was found.

    Attributes:
        claim: the claim.
        values: one a seed that has it defined, in the order of the runs.
        runs: number of runs looked at.
        verdict: of the median, and of how many runs lie in the range.
        inside: how many of the runs lie in the range.
        unsolved: how many of the runs ended before they had solved their task, maybe in the middle of their drop.
        old: how many of the runs are on record without their tables, with the numbers of an old definition.
    """

    claim: Claim
    values: tuple[float, ...]
    runs: int
    verdict: Verdict
    inside: int = 0
    unsolved: int = 0
    old: int = 0

    @property
    def value(self) -> float | None:
        """Median over seeds; None where it is nowhere defined."""
        return statistics.median(self.values) if self.values else None


def check(claim: Claim, summaries: Summaries, scale: str = PAPER) -> Outcome:
    """Check a claim on the given runs. A run with the numbers of an old definition counts for those that it has."""
    runs = [run for run in summaries.get(claim.recipe, ()) if not _lacks(run, claim.number)]
    base = summaries.get(claim.over, ()) if claim.over else ()
    if not runs or (claim.over and not base):
        return Outcome(claim, (), len(runs), "not yet run")
    unsolved = sum(map(_never_solved, runs))
    old = sum(run.get("old_definition") is not None for run in runs)
    values = [value for run in runs if (value := run.get(claim.number)) is not None]
    if claim.over:
        values = [ratio for run in runs if (ratio := _ratio(claim.number, run, base)) is not None]
    if not values:
        return Outcome(claim, (), len(runs), "undefined", 0, unsolved, old)
    within = _within(*claim.range(scale))
    inside = sum(map(within, values))
    # The median of two seeds can lie in the range when one of them does, and a third has no number.
    holds = within(statistics.median(values)) and 2 * inside >= len(runs)
    verdict: Verdict = "holds" if holds else "fails"
    if 2 * len(values) < len(runs):
        verdict = "undefined"
    elif len(runs) < claim.seeds:
        verdict = "holds so far" if verdict == "holds" else "fails so far"
    return Outcome(claim, tuple(values), len(runs), verdict, inside, unsolved, old)


def _within(low: float | None, high: float | None) -> Callable[[float], bool]:
    return lambda value: (low is None or value >= low) and (high is None or value <= high)


def check_all(
    claims: Iterable[Claim], summaries: Summaries, scale: str = PAPER, figures: Iterable[str] | None = None
) -> list[Outcome]:
    """Every claim of these, or those of some figures."""
    wanted = None if figures is None else set(figures)
    return [check(claim, summaries, scale) for claim in claims if wanted is None or claim.figure in wanted]


def claims_table(claims: Iterable[Claim]) -> pd.DataFrame:
    """The claims as they are written down: one row each, a column for each of their fields; `at` as text."""
    rows = [
        {
            "study": claim.study,
            "id": claim.id,
            "figure": claim.figure,
            "text": claim.text,
            "setup": claim.recipe if claim.over is None else f"{claim.recipe} / {claim.over}",
            "number": claim.number,
            "low": claim.low,
            "high": claim.high,
            "at": "; ".join(f"{scale}: {low} to {high}" for scale, (low, high) in claim.at.items()),
            "paper": claim.paper,
            "source": claim.source,
            "seeds": claim.seeds,
            "changed": "; ".join(map(str, claim.changes)),
        }
        for claim in claims
    ]
    return pd.DataFrame(rows).astype({"low": float, "high": float})


def _ratio(number: str, run: Numbers, base: Sequence[Numbers]) -> float | None:
    """A run's number over that of the base's run of the same seed, which shares its data and most of its initial
    weights; over the median where that seed was not run."""
    value, seed = run.get(number), run.get("seed")
    same = [other for other in base if seed is not None and other.get("seed") == seed]
    below = [found for other in same or base if (found := _divisor(number, other)) is not None]
    divisor = statistics.median(below) if below else None
    return value / divisor if value is not None and divisor else None


def _divisor(number: str, run: Numbers) -> float | None:
    """A run's number, unless it is only a lower bound: a ratio to it would have no meaning."""
    return None if number == "took" and _never_solved(run) else run.get(number)


def _lacks(run: Numbers, number: str) -> bool:
    """Whether the number was not there yet when the run was recorded, and nothing is left to read it off."""
    return run.get("old_definition") is not None and run.get(number) is None


def _never_solved(run: Numbers) -> bool:
    return "solved_at" in run and run["solved_at"] is None
