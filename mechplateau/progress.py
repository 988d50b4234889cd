"""Progress of long computations: bars as tqdm makes them, for every `progress` argument.

    patch_sweep(…, progress=tqdm.auto.tqdm)     # a bar in a notebook

A function that takes long makes one bar, or one after the other, and counts into it:

    with closing(bars(progress)(total=len(steps), desc="probing")) as bar:
        for step in steps:
            …
            bar.update(1)
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from mechplateau.errors import UserError

_SILENT_SECONDS = 2.0


class Bar(Protocol):
    """Counts work that was done."""

    def update(self, n: int = 1) -> Any:
        """So many more pieces of work are done."""

    def set_postfix_str(self, s: str = "") -> Any:
        """A word about the present work."""

    def close(self) -> Any:
        """The work has ended, finished or not."""


Progress = Callable[..., Bar]
"""Makes a bar. It is called with `total`, how many pieces of work there are, and `desc`, what is done."""


def bars(progress: Progress | str | None) -> Progress:
    """What makes the bars of a `progress` argument: the argument itself; for "stderr" tqdm, which shows work of more
    than two seconds; for "notebook" the same in a Jupyter notebook, and silent ones elsewhere; for None silent ones.

    In a notebook a bar is a widget, or a line of the cell's output where ipywidgets is not installed. It is gone when
    the work is done.

    Raises:
        UserError: it is none of them.
    """
    if progress is None or (progress == "notebook" and not in_notebook()):
        return _Silent
    if progress in ("stderr", "notebook"):
        return _patient
    if isinstance(progress, str) or not callable(progress):
        raise UserError(
            f'progress: expected "stderr", "notebook", a function such as tqdm, or None, got {progress!r}'
        )
    return progress


def part_of(bar: Bar) -> Progress:
    """Makes bars of parts of the work, which count into this one and leave it open."""
    return partial(_Part, bar)


def in_notebook() -> bool:
    """Whether this process runs the cells of a Jupyter notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def quiet_in_notebooks() -> None:
    """No box of errors where ipywidgets is not installed: tqdm says so to everyone who imports it, and libraries do."""
    if "ipykernel" in sys.modules:
        warnings.filterwarnings("ignore", message="IProgress not found")


def _patient(**given: Any) -> Bar:
    """tqdm's bar, once the work has taken some seconds: on stderr, or in a notebook's output."""
    there = in_notebook()
    widgets = there and importlib.util.find_spec("ipywidgets") is not None
    if there:
        given = {**given, "leave": False} | ({} if widgets else {"file": sys.stdout})
    kind: Any = importlib.import_module("tqdm.notebook" if widgets else "tqdm").tqdm

    class Patient(kind):
        """tqdm's delay is for counts; a word would show the bar at once."""

        def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
            super().set_postfix_str(s, refresh and time.time() - self.start_t > _SILENT_SECONDS)

    return Patient(**given, delay=_SILENT_SECONDS)


class _Silent:
    """Says nothing."""

    def __init__(self, **given: Any):
        pass

    def update(self, n: int = 1) -> None:
        pass

    def set_postfix_str(self, s: str = "") -> None:
        pass

    def close(self) -> None:
        pass


class _Part:
    """Counts into another bar."""

    def __init__(self, bar: Bar, **given: Any):
        self.update = bar.update
        self.set_postfix_str = bar.set_postfix_str

    def close(self) -> None:
        pass
