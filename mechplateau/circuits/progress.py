"""How far a long analysis is, and how long it will take still."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from mechplateau.errors import UserError

_SILENT_SECONDS = 2.0
_BETWEEN_SECONDS = 0.5


@dataclass(frozen=True)
class Progress:
    """Attributes:
    done: work done, from 0 to 1.
    seconds: time taken so far.
    seconds_left: at the rate so far.
    """

    done: float
    seconds: float
    seconds_left: float

    def __str__(self) -> str:
        return f"{self.done:4.0%}, {self.seconds:.0f} s, {self.seconds_left:.0f} s left"


Listener = Callable[[Progress], None]


class Clock:
    """Counts work and tells a listener.

    Args:
        total: the work there is, in any unit.
        listener: hears after every piece of work; None: nobody.
    """

    def __init__(self, total: int, listener: Listener | None):
        self._total = max(total, 1)
        self._listener = listener
        self._done = 0
        self._began = time.perf_counter()

    def add(self, work: int) -> None:
        """Some work has been done."""
        self._done += work
        if self._listener is not None:
            seconds = time.perf_counter() - self._began
            share = min(self._done / self._total, 1.0)
            self._listener(Progress(share, seconds, seconds * (1 - share) / share if share else float("inf")))


def listener_for(progress: Listener | str | None, label: str) -> Listener | None:
    """The listener that a tool's `progress` argument stands for.

    Raises:
        UserError: neither "stderr", nor a function, nor None.
    """
    if isinstance(progress, str):
        if progress != "stderr":
            raise UserError(f'progress: expected "stderr", a function or None, got {progress!r}')
        return ShownOnStderr(label)
    if progress is not None and not callable(progress):
        raise UserError(f'progress: expected "stderr", a function or None, got {progress!r}')
    return progress


class ShownOnStderr:
    """A listener that keeps one line up to date, for work that takes more than two seconds."""

    def __init__(self, label: str):
        self._label = label
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.seconds < _SILENT_SECONDS and not self._last:
            return
        if progress.seconds - self._last < _BETWEEN_SECONDS and progress.done < 1:
            return
        self._last = progress.seconds
        print(
            f"\r{self._label}: {progress}   ",
            end="\n" if progress.done >= 1 else "",
            file=sys.stderr,
            flush=True,
        )
