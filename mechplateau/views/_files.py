"""Writing a picture or page: a plain file whole or not at all, anything else written through."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
from pathlib import Path

from mechplateau.views.data import ViewError

_DESCRIPTOR = re.compile(r"/dev/(?:(stdout)|(stderr)|fd/(\d+))|/proc/self/fd/(\d+)")


def write_file(path: Path, content: bytes) -> Path:
    """Write where `path` leads; missing folders are made.

    A plain file is written under a temporary name in its own folder, then renamed: whole or not at all, with the
    permissions that it had. A link stays a link, and the file it leads to is written. A pipe or a device is written
    to, and so is an open descriptor (`/dev/stdout`), where it stands.

    Raises:
        ViewError: it cannot be written, or is a folder; a plain file that was there is unchanged.
        BrokenPipeError: nobody reads the pipe any more.
    """
    try:
        number = _descriptor(path)
        if number is not None:
            _write_through(os.dup(number), content)
            return path
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise ViewError(f"{path}: is a folder; expected the name of a file")
        if mode is None or stat.S_ISREG(mode):
            _replace(Path(os.path.realpath(path)), content, mode)
        else:
            _write_through(os.open(path, os.O_WRONLY), content)
    except BrokenPipeError:
        raise  # whoever reads has had enough, which is no mistake
    except OSError as error:
        raise ViewError(
            f"{path}: cannot write it ({error.strerror or error}); free space or choose another folder"
        ) from error
    return path


def is_stdout(path: Path) -> bool:
    """Whether writing to `path` writes to standard output."""
    return _descriptor(path) == 1


def _descriptor(path: Path) -> int | None:
    """The number of the open descriptor that a path such as `/dev/stdout` or `/dev/fd/3` stands for; else None."""
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is None:
        return None
    stdout, stderr, *numbers = found.groups()
    return 1 if stdout else 2 if stderr else int(next(filter(None, numbers)))


def _mode(path: Path) -> int | None:
    """What there is at the end of all links, and its permissions; None where there is nothing yet."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _write_through(number: int, content: bytes) -> None:
    # What was printed before comes before.
    print(end="", flush=True)
    print(end="", flush=True, file=sys.stderr)
    with open(number, "wb") as file:
        file.write(content)


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        ) as file:
            temporary = file.name
            file.write(content)
        # Temporary files are made readable to their owner only; a report is for others too.
        os.chmod(temporary, 0o666 & ~_umask() if mode is None else stat.S_IMODE(mode))
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise


def _umask() -> int:
    # Python can only read the mask by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
