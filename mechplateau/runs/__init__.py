"""Run folders: the only code that touches them."""

from mechplateau.runs.phases import Phases
from mechplateau.runs.run import Run, list_runs, load_checkpoint, load_run, unreadable_runs
from mechplateau.runs.writer import RunWriter

__all__ = ["Phases", "Run", "RunWriter", "list_runs", "load_checkpoint", "load_run", "unreadable_runs"]
