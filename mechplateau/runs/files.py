"""Writing files so that a crash, a kill or a full disk never leaves half of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mechplateau.errors import RunError

_TEMPORARY = ".tmp-"

REMEDY = "put a copy back, or rename the run's folder to train it from the start"
"""What to do about a file of a run that is lost or damaged."""


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a temporary file beside `path`, sync it, then rename it into place.

    Raises:
        RunError: the file cannot be written (a full disk, say); what stood at `path` before still does.
    """
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{path.name}")
    with explained(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            sync_to_disk(temporary)
            os.replace(temporary, path)
            sync_to_disk(path.parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """`write_atomic` for text, UTF-8."""
    write_atomic(path, lambda temporary: _write_bytes(temporary, text.encode()))


def leftovers(folder: Path) -> list[Path]:
    """What killed writes left in `folder` and below, and writes of another process that are under way."""
    return list(folder.rglob(f"{_TEMPORARY}*"))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the system's errors about `path` into a RunError that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"{path}: cannot be written ({reason}); free space or choose another --runs-dir, "
            "then give the same command again: a run goes on where it was last saved"
        ) from None


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def sync_to_disk(path: Path) -> None:
    """Have the system put a file, or a folder's names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
