"""Paths as people write them."""

from __future__ import annotations

import os
from pathlib import Path

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
