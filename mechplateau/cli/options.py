"""Options that several groups of commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from mechplateau.files import file_path, local_path


def _given(value: str | os.PathLike[str] | None) -> Path | None:
    return None if value is None else local_path(value)


def _written(value: str | None) -> Path | None:
    return None if value is None else Path("/dev/stdout") if value == "-" else file_path(value)


PATH_OPTION: dict[str, Any] = {"parser": str, "metavar": "PATH", "callback": _given}
"""For `typer.Option`: a path that is read with `local_path`. Typer's own reading takes an empty one for `.`."""

OUTPUT_OPTION: dict[str, Any] = {**PATH_OPTION, "callback": _written}
"""For `typer.Option`: a file to write, read with `file_path`; - is standard output."""

Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Jobs = Annotated[
    int | None, typer.Option(help="Runs at a time (default: 1; on Ray as many as it has room for).")
]
