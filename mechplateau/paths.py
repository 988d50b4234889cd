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


def _given(value: str | os.PathLike[str] | None) -> Path | None:
    return None if value is None else local_path(value)


PATH_OPTION: dict[str, Any] = {"parser": str, "metavar": "PATH", "callback": _given}
"""For `typer.Option`: a path that is read with `local_path`. Typer's own reading takes an empty one for `.`."""
