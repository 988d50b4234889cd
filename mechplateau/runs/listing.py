"""The runs in a folder: those that can be opened, and why others cannot."""

from __future__ import annotations

from pathlib import Path

from mechplateau.errors import UserError
from mechplateau.files import local_path
from mechplateau.runs.run import Run


def list_runs(runs_dir: str | Path) -> list[Run]:
    """The runs in a folder, by name; see `unreadable_runs` for those that cannot be opened."""
    return [run for run in _opened(runs_dir).values() if isinstance(run, Run)]


def unreadable_runs(runs_dir: str | Path) -> dict[str, str]:
    """Names of the run folders that cannot be opened, each with the reason (an unregistered task, say)."""
    return {
        name: str(problem) for name, problem in _opened(runs_dir).items() if isinstance(problem, UserError)
    }


def _opened(runs_dir: str | Path) -> dict[str, Run | UserError]:
    root = local_path(runs_dir)
    opened: dict[str, Run | UserError] = {}
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            if Run.exists(path):
                opened[path.name] = Run(path)
        except UserError as problem:
            opened[path.name] = problem
    return opened
