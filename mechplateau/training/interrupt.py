"""Ctrl-C (and SIGTERM) as a wish that is honored between two steps, when everything can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunInterrupted(Exception):
    """The run was stopped by the user; it has been saved, and the same command goes on with it.

    Attributes:
        step: the step that was saved.
    """

    def __init__(self, path: object, step: int):
        super().__init__(f"stopped at step {step}, saved in {path}; the same command goes on from there")
        self.step = step


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Within, Ctrl-C or SIGTERM sets the event; a second Ctrl-C acts as usual. Off the main thread, nothing changes.

    SIGTERM only ever sets it: a process that asks for the signal at its parent's end gets one for every thread of
    the parent that it passes through, and the second must not cut short the save that the first began.
    """
    wish = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def note(number: int, frame: object) -> None:
        wish.set()
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    try:
        for number in _SIGNALS:
            signal.signal(number, note)
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
