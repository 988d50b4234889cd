"""Writing a picture or page: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from mechplateau.views.data import ViewError


def write_atomically(path: Path, content: bytes) -> Path:
    """Write under a temporary name in the same folder, then rename; missing folders are made.

    Raises:
        ViewError: the file cannot be written; the one that was there, if any, is unchanged.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        ) as file:
            temporary = file.name
            file.write(content)
        # Temporary files are made readable to their owner only; a report is for others too.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise ViewError(
            f"{path}: cannot write it ({error.strerror or error}); free space or choose another folder"
        ) from error
    return path


def _umask() -> int:
    # Python can only read the mask by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
