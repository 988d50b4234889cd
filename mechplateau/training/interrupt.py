"""Ctrl-C (and SIGTERM and SIGHUP) deferred to the next step boundary, where everything can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

# SIGHUP: the terminal was closed, or the connection to it was lost. Windows has none.
_ENDINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_SIGNALS = (signal.SIGINT, *_ENDINGS)


class RunInterrupted(KeyboardInterrupt):
    """The run was stopped by the user; it has been saved; rerun the same command to resume.

    Not an Exception, so that a loop over runs that catches every Exception ends too.

    Attributes:
        step: the step that was saved.
    """

    def __init__(self, path: object, step: int):
        super().__init__(f"stopped at step {step}, saved in {path}; rerun the same command to resume")
        self.step = step


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Inside the context, Ctrl-C, SIGTERM or SIGHUP sets the event; a second Ctrl-C acts as usual. Outside the main
    thread, and for ignored signals (SIGHUP under nohup), nothing changes.

    SIGTERM and SIGHUP only ever set it: a process that requests the signal at its parent's end gets one for every
    thread of the parent that it passes through, and the second must not cut short the save that the first began.
    """
    wish = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = _handlers(_SIGNALS)

    def note(number: int, frame: object) -> None:
        wish.set()
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    try:
        for number in before:
            signal.signal(number, note)
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminable() -> Iterator[None]:
    """Inside the context, SIGTERM (sent by a time limit or a job scheduler) and SIGHUP do what Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _handlers(_ENDINGS)
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handlers(numbers: Iterable[signal.Signals]) -> dict[signal.Signals, Any]:
    """The handlers of these signals, except ignored ones and those that are not Python's."""
    present = {number: signal.getsignal(number) for number in numbers}
    return {number: handler for number, handler in present.items() if handler not in (signal.SIG_IGN, None)}
