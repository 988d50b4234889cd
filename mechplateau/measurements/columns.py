"""A column of the metrics table, and its documentation.

The table's Parquet schema, `Run.columns`, `mechplateau columns` and the labels of a report all come from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: as the table has it.
        unit: of its numbers: "nats", "share", "steps", …; "1" where it has none.
        definition: what it is, in a few words.
        undefined_when: when it is null; "" where it always has a number (of a model whose numbers are finite).
        dtype: what the table stores.
    """

    name: str
    unit: str
    definition: str
    undefined_when: str = ""
    dtype: Literal["float64", "int64"] = "float64"


STEP = Column("step", "updates", "updates done", dtype="int64")


def markdown(columns: Iterable[Column]) -> str:
    """The columns as a table in Markdown."""
    lines = ["| column | unit | what | undefined |", "|---|---|---|---|"]
    lines += [f"| {c.name} | {c.unit} | {c.definition} | {c.undefined_when} |" for c in columns]
    return "\n".join(lines) + "\n"


__all__ = ["STEP", "Column", "markdown"]
