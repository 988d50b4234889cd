"""Timing two ways of doing the same work alternately in one run, and the table of their ratios."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One line of the table: what, the reference's seconds, ours, and the ratio with what it should be."""

    name: str
    reference: str
    reference_seconds: float
    ours_seconds: float
    ratio: float
    wanted: str


@dataclass
class Table:
    """Rows collected while benchmarks run, printed at the end."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was measured that is no time, a sentence each, below the rows."""

    def faster(self, name: str, reference: str, times: tuple[float, float], at_least: float) -> float:
        """Record how many times faster ours is: reference / ours."""
        ratio = times[0] / times[1]
        self.rows.append(Row(name, reference, *times, ratio, f"≥ {at_least:g}×"))
        return ratio

    def costs(
        self, name: str, reference: str, times: tuple[float, float], at_most: float | None = None
    ) -> float:
        """Record how many times the reference's time ours takes: ours / reference; None: nothing is wanted of it."""
        ratio = times[1] / times[0]
        self.rows.append(Row(name, reference, *times, ratio, "" if at_most is None else f"≤ {at_most:g}×"))
        return ratio

    def lines(self) -> list[str]:
        """The table as Markdown."""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
        head = [
            f"Measured alternately, of each the turn with the median ratio; load average {load:.1f}.",
            "",
            "| what | against | its time (s) | ours (s) | ratio | wanted |",
            "|---|---|---|---|---|---|",
        ]
        rows = [
            f"| {r.name} | {r.reference} | {r.reference_seconds:.4g} | {r.ours_seconds:.4g} "
            f"| {r.ratio:.3g}× | {r.wanted} |"
            for r in self.rows
        ]
        return head + rows + [line for note in self.notes for line in ("", note)]


TABLE = Table()


def with_part(page: str, name: str, text: str) -> str:
    """A page of parts, each below a mark with its name, with one part put in or replaced.

    Runs on one and on two threads, or of half of the benchmarks, write one page so. What is on the page without a mark
    goes.
    """
    marks = re.split(r"^<!-- (.+) -->\n", page, flags=re.MULTILINE)
    parts = {**dict(zip(marks[1::2], marks[2::2], strict=True)), name: text}
    return "\n".join(f"<!-- {one} -->\n{found.strip()}\n" for one, found in parts.items())


def alternate(
    reference: Callable[[], object],
    ours: Callable[[], object],
    *,
    rounds: int = 5,
    inner: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Seconds of one call of each, in the turn of which their ratio is the median, after one call of each to warm up.

    A machine that others share changes its speed within seconds, for both sides of a turn alike: the medians of
    each side alone could be of different speeds.

    Args:
        reference, ours: the two ways.
        rounds: how many turns.
        inner: calls of ours a turn, for work too short to time once.
        clock: seconds; `time.process_time` where both sides work on one thread and others share the machine.
    """
    reference()
    ours()
    reference_seconds, our_seconds = [], []
    for _ in range(rounds):
        begin = clock()
        reference()
        middle = clock()
        for _ in range(inner):
            ours()
        reference_seconds.append(middle - begin)
        our_seconds.append((clock() - middle) / inner)
    return middle_turn(reference_seconds, our_seconds)


def middle_turn(reference: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """Seconds of both in the turn of which their ratio is the median."""
    turns = sorted(zip(reference, ours, strict=True), key=lambda turn: turn[0] / turn[1])
    return turns[(len(turns) - 1) // 2]
