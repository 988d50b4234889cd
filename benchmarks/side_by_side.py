"""Timing two ways of doing the same work alternately in one run, and the table of their ratios."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
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

    def faster(self, name: str, reference: str, times: tuple[float, float], at_least: float) -> float:
        """Record how many times faster ours is: reference / ours."""
        ratio = times[0] / times[1]
        self.rows.append(Row(name, reference, *times, ratio, f"≥ {at_least:g}×"))
        return ratio

    def costs(self, name: str, reference: str, times: tuple[float, float], at_most: float) -> float:
        """Record how many times the reference's time ours takes: ours / reference."""
        ratio = times[1] / times[0]
        self.rows.append(Row(name, reference, *times, ratio, f"≤ {at_most:g}×"))
        return ratio

    def lines(self) -> list[str]:
        """The table as Markdown."""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
        head = [
            f"Medians, measured alternately; load average {load:.1f}.",
            "",
            "| what | against | its time (s) | ours (s) | ratio | wanted |",
            "|---|---|---|---|---|---|",
        ]
        return head + [
            f"| {r.name} | {r.reference} | {r.reference_seconds:.4g} | {r.ours_seconds:.4g} "
            f"| {r.ratio:.3g}× | {r.wanted} |"
            for r in self.rows
        ]


TABLE = Table()


def alternate(
    reference: Callable[[], object], ours: Callable[[], object], *, rounds: int = 5, inner: int = 1
) -> tuple[float, float]:
    """Median seconds of one call of each, timed in turns after one call of each to warm up.

    Args:
        reference, ours: the two ways.
        rounds: how many turns.
        inner: calls of ours a turn, for work too short to time once.
    """
    reference()
    ours()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        begin = time.perf_counter()
        reference()
        middle = time.perf_counter()
        for _ in range(inner):
            ours()
        times[0].append(middle - begin)
        times[1].append((time.perf_counter() - middle) / inner)
    return statistics.median(times[0]), statistics.median(times[1])
