"""Paths as people write them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mechplateau.errors import UserError


def local_path(path: str | os.PathLike[str]) -> Path:
    """The path, in which a leading `~` is the home folder (and `~name` that of a user of this name, if there is one).

    Raises:
        UserError: the path is empty: a variable that was not set, say.
    """
    text = os.fspath(path)
    if not text:
        raise UserError("expected a path, got ''")
    return Path(os.path.expanduser(text))


def file_path(path: str | os.PathLike[str]) -> Path:
    """`local_path` of a file that is to be written.

    Raises:
        UserError: the path is empty, or ends as a folder's does.
    """
    text = os.fspath(path)
    if text.endswith((os.sep, os.altsep or os.sep)):
        raise UserError(f"{text}: is a folder; expected the name of a file")
    return local_path(text)


def _given(value: str | os.PathLike[str] | None) -> Path | None:
    return None if value is None else local_path(value)


def _written(value: str | None) -> Path | None:
    return None if value is None else Path("/dev/stdout") if value == "-" else file_path(value)


PATH_OPTION: dict[str, Any] = {"parser": str, "metavar": "PATH", "callback": _given}
"""For `typer.Option`: a path that is read with `local_path`. Typer's own reading takes an empty one for `.`."""

OUTPUT_OPTION: dict[str, Any] = {**PATH_OPTION, "callback": _written}
"""For `typer.Option`: a file to write, read with `file_path`; - is standard output."""
