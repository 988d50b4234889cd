"""Run folders: the only code that touches them."""

from mechplateau.runs.examples import example
from mechplateau.runs.listing import list_runs, unreadable_runs
from mechplateau.runs.phases import Phases
from mechplateau.runs.run import (
    Run,
    is_finished,
    is_or_says_finished,
    load_checkpoint,
    load_run,
)
from mechplateau.runs.writer import RunWriter

__all__ = [
    "Phases",
    "Run",
    "RunWriter",
    "example",
    "is_finished",
    "is_or_says_finished",
    "list_runs",
    "load_checkpoint",
    "load_run",
    "unreadable_runs",
]
