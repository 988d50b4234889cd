"""The record of a GPU check: rows by section, written as JSON and Markdown after every section."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Cell = str | int | float | bool | None
Line = dict[str, Cell]


@dataclass
class Section:
    title: str
    status: str = "not yet measured"
    rows: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Report:
    """Sections in order; whatever happens, what was measured so far is on disk.

    Args:
        folder: gets `kernels.json` and `kernels.md`.
        budget_s: seconds the whole check may take; a section that would not fit is left out and says so.
    """

    def __init__(self, folder: Path, budget_s: float) -> None:
        self.folder = folder
        self.budget_s = budget_s
        self.environment: dict[str, Any] = {}
        self.sections: list[Section] = []
        self._begin = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        """Seconds of the budget that remain."""
        return self.budget_s - (time.monotonic() - self._begin)

    def run(self, title: str, work: Callable[[Section], None], needs_s: float = 5.0) -> None:
        """Run one section; a failure is recorded with its traceback's end and the next section goes on."""
        section = Section(title)
        self.sections.append(section)
        if self.left() < needs_s:
            section.status = f"not measured: {self.left():.0f} s of the budget were left"
        else:
            begin = time.monotonic()
            try:
                work(section)
                section.status = "done"
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                section.status = (
                    f"failed: {type(error).__name__}: {str(error)[:800]} ({last.filename}:{last.lineno})"
                )
                traceback.print_exc()
            section.seconds = time.monotonic() - begin
        print(f"[{self.budget_s - self.left():6.1f} s] {title}: {section.status[:200]}", flush=True)
        self.write()

    def skip(self, title: str, why: str) -> None:
        self.sections.append(Section(title, status=f"not yet measured: {why}"))
        self.write()

    def failed(self) -> bool:
        """Whether a section broke, or a row of one says `ok: False`."""
        rows = (row for section in self.sections for row in section.rows)
        return any(s.status.startswith("failed") for s in self.sections) or any(
            r.get("ok") is False for r in rows
        )

    def write(self) -> None:
        content = {
            "environment": self.environment,
            "sections": [vars(section) for section in self.sections],
        }
        (self.folder / "kernels.json").write_text(json.dumps(content, indent=1, default=str) + "\n")
        (self.folder / "kernels.md").write_text(self._markdown())

    def _markdown(self) -> str:
        lines = ["# Kernels on a GPU", ""]
        lines += [f"- {key}: {value}" for key, value in self.environment.items()]
        for section in self.sections:
            lines += ["", f"## {section.title}", "", f"{section.status} ({section.seconds:.1f} s)"]
            lines += [f"\n{note}" for note in section.notes]
            lines += ["", *table(section.rows)] if section.rows else []
        return "\n".join(lines) + "\n"


def table(rows: list[Line]) -> list[str]:
    """Markdown table over the union of the rows' columns, in order of appearance."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(_cell(row.get(column)) for column in columns) + " |" for row in rows]


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
