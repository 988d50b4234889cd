"""Numbers of a run: what claims are about and what is on record."""

from __future__ import annotations

from collections.abc import Mapping

Numbers = dict[str, float | None]
"""Name → value; None where undefined. A study says what each of its names means."""


def rounded(numbers: Mapping[str, float | None]) -> Numbers:
    """For tables: six significant digits, whole numbers without a point."""
    return {
        name: None if value is None else (int(value) if float(value).is_integer() else float(f"{value:.6g}"))
        for name, value in numbers.items()
    }
