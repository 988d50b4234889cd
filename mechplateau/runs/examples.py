"""A finished run that comes with the package: something to open at once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from mechplateau.errors import UserError
from mechplateau.files import explained, local_path
from mechplateau.runs.run import Run, load_run

SHIPPED = Path(__file__).parent / "shipped"
"""One finished run a task, in a folder of its name; `make example` trains them."""


def example_names() -> list[str]:
    """The tasks that have an example."""
    return sorted(path.name for path in SHIPPED.iterdir() if path.is_dir())


def example(name: str = "mws", *, runs_dir: str | Path = "runs") -> Run:
    """A finished small run, which comes with the package: the task's preset `small`, seed 0, with 14 checkpoints.

    It is copied into `runs_dir` first, so that reports and notes have a place. A run of the same configuration that is
    already there is opened as it is.

    Args:
        name: the task; `mws` (the moving window sum) is the only one.
        runs_dir: where run folders lie.

    Raises:
        UserError: no such example.
        RunError: it cannot be copied (no permission, a full disk), or what is there cannot be opened.
    """
    if name not in example_names():
        raise UserError(f"example: expected one of {', '.join(example_names())}, got {name!r}")
    (source,) = (SHIPPED / name).iterdir()
    runs = local_path(runs_dir)
    target = runs / source.name
    if not target.exists():
        with explained(target):
            runs.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".example-", dir=runs) as folder:
                copied = shutil.copytree(source, Path(folder, source.name), copy_function=shutil.copyfile)
                try:
                    os.rename(copied, target)
                except OSError:
                    if not target.exists():  # else another process was first
                        raise
    return load_run(target)
