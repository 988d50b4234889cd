"""Tables on a terminal of any width: names and numbers are never cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_GAP = 2
_NARROWEST = 16
"""Characters that a column of free text has at least, where it shares its line with others."""


def print_table(
    table: pd.DataFrame,
    console: Console,
    *,
    wraps: Sequence[str] = (),
    right: Sequence[str] = (),
    alarming: Collection[str] = (),
) -> None:
    """Print a table of texts.

    Where the terminal is too narrow for one line a row, each row is a block of lines `name: value`. A column without a
    name heads its block.

    Args:
        table: texts; empty columns are left out.
        console: where to.
        wraps: columns of free text, which may take several lines.
        right: columns of numbers, which end at one place.
        alarming: texts that are shown in red.
    """
    shown = table.loc[:, (table != "").any()]
    needed = sum(_width(shown, name, wraps) + _GAP for name in shown.columns)
    if needed <= console.width:
        drawn = Table(box=None, padding=(0, _GAP, 0, 0))
        for name in shown.columns:
            justify: Literal["left", "right"] = "right" if name in right else "left"
            drawn.add_column(escape(name), no_wrap=name not in wraps, overflow="fold", justify=justify)
        for row in shown.itertuples(index=False):
            drawn.add_row(*(Text(text, "red" if text in alarming else "") for text in row))
        console.print(drawn, highlight=False)
        return
    for number, row in enumerate(shown.itertuples(index=False)):
        if number:
            console.print()
        for name, text in zip(shown.columns, row, strict=True):
            if text:
                line = f"{name}: {text}" if name else text
                console.print(escape(line), highlight=False, soft_wrap=True)


def lines_of(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Names and values, side by side where the width allows it; otherwise each as `name: value`."""
    first = max((len(name) for name, _ in rows), default=0)
    if all(first + _GAP + len(value) <= width for _, value in rows):
        return [f"{name:<{first + _GAP}}{value}" for name, value in rows]
    return [f"{name}: {value}" for name, value in rows]


def shown_runs(table: pd.DataFrame) -> pd.DataFrame:
    """`report.overview`'s table as texts: steps as one column, ages in words, empty where undefined."""
    steps = [f"{done}/{whole}" for done, whole in zip(table["step"], table["steps"], strict=True)]
    columns = {
        "run": table["run"],
        "task": table["task"],
        "what differs": table["what differs"],
        "seed": table["seed"].map(str),
        "state": table["state"],
        "steps": steps,
        "drop": [_number(value, "{:.0f}") for value in table["drop"]],
        "accuracy": [_number(value, "{:.3f}") for value in table["accuracy"]],
        "age": [age(seconds) for seconds in table["age (s)"]],
    }
    return pd.DataFrame(columns, index=table.index).astype(str)


def age(seconds: float) -> str:
    """A time span in its largest whole unit: `45 s`, `12 min`, `3 h`, `9 d`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def _number(value: float, form: str) -> str:
    return "" if pd.isna(value) else form.format(value)


def _width(table: pd.DataFrame, name: str, wraps: Sequence[str]) -> int:
    longest = max((len(text) for text in table[name]), default=0)
    return max(len(name), min(longest, _NARROWEST) if name in wraps else longest)
