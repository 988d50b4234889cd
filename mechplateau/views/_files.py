"""Writing a picture or page: a plain file whole or not at all, anything else written through."""

from __future__ import annotations

from pathlib import Path

from mechplateau.files import is_stdout, write_whole
from mechplateau.views.data import ViewError


def write_file(path: Path, content: bytes) -> Path:
    """Write where `path` leads, as `files.write_whole` does; missing folders are made.

    Raises:
        ViewError: it cannot be written, or is a folder; a plain file that was there is unchanged.
        BrokenPipeError: the pipe has no reader any more.
    """
    try:
        write_whole(path, lambda temporary: temporary.write_bytes(content))
    except BrokenPipeError:
        raise  # whoever reads has had enough, which is no mistake
    except IsADirectoryError as error:
        raise ViewError(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise ViewError(
            f"{path}: cannot write it ({error.strerror or error}); free space or choose another folder"
        ) from error
    return path


__all__ = ["is_stdout", "write_file"]
