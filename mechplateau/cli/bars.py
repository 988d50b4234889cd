"""Progress of long commands on standard error: a bar on a terminal, lines in a file or pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mechplateau.progress import Bar

PLAIN_INTERVAL = 20.0
"""Seconds between lines where the output is a file or a pipe."""


def shown(*, total: int, desc: str) -> Bar:
    """tqdm's bar on a terminal, else a line from time to time."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        return tqdm(total=total, desc=desc, leave=False)
    return _NowAndThen(total, desc)


def told(*, total: int, desc: str) -> Bar:
    """A line for every message about the work."""
    return _Lines(total, desc)


class _Lines:
    def __init__(self, total: int, desc: str):
        self.total, self.desc, self.done, self.word = total, desc, 0, ""

    def update(self, n: int = 1) -> None:
        self.done += n

    def set_postfix_str(self, s: str = "") -> None:
        self.word = s
        self._print()

    def close(self) -> None:
        pass

    def _print(self) -> None:
        print(f"{self.desc} [{self.done}/{self.total}] {self.word}", file=sys.stderr, flush=True)


class _NowAndThen(_Lines):
    last = float("-inf")

    def update(self, n: int = 1) -> None:
        super().update(n)
        if self.done == self.total or time.monotonic() - self.last > PLAIN_INTERVAL:
            self.last = time.monotonic()
            self._print()

    def set_postfix_str(self, s: str = "") -> None:
        self.word = s
