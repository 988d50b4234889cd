"""Optional mirrors of a run's rows in Weights & Biases or TensorBoard.

The run folder is the record. A tracker runs in its own process, which is fed through a queue: its problems (no
account, no network, not installed, hanging) can neither stop nor slow the run nor lose data.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mechplateau.config import RunConfig
from mechplateau.errors import UserError, counted
from mechplateau.files import explained

TRACKERS = ("wandb", "tensorboard")
PATIENCE = 8.0
"""Seconds that a tracker gets to finish after the last step."""


def check_tracker(name: str) -> None:
    """Raise UserError unless the tracker is known and installed."""
    if name not in TRACKERS:
        raise UserError(f"tracker: expected one of {', '.join(TRACKERS)}, got {name!r}")
    found = importlib.util.find_spec(name)
    if (
        found is None or found.origin is None
    ):  # none: a mere folder of this name, as wandb itself leaves behind
        raise UserError(f"tracker: {name} is not installed; pip install 'mechplateau[{name}]'")


class Tracker:
    """A listener that hands rows to a tracker process. Use as a context manager.

    Args:
        name: "wandb" or "tensorboard".
        config: the run's configuration.
        folder: where the tracker's own files go (`folder / name`).

    Attributes:
        notice: what went wrong, on one line, once the context is left; None if nothing did.

    Raises:
        UserError: no such tracker, or it is not installed.
    """

    def __init__(self, name: str, config: RunConfig, folder: Path):
        check_tracker(name)
        self.name = name
        self.notice: str | None = None
        self._queue: queue.Queue[str | None] = queue.Queue(maxsize=100_000)
        self._dropped = 0
        self._log = folder / name / "tracker.log"
        with explained(self._log):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            log_file = self._log.open("ab")
        with log_file as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mechplateau.training.tracker_process", name, str(folder / name)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                # Ctrl-C is for the run; the tracker ends when its input does.
                start_new_session=True,
                env={**os.environ, "WANDB_SILENT": "true"},
            )
        self._put({"name": config.run_name, "project": "mechplateau", "config": config.data()})
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._feeder.start()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_step(self, step: int, row: dict[str, float | int | None] | None) -> None:
        """Queue a measured row; never waits."""
        if row is not None:
            self._put(row)

    def close(self) -> None:
        """Let the tracker finish what it has, for at most `PATIENCE` seconds, then end it."""
        self._put(None)
        try:
            code = self._process.wait(timeout=PATIENCE)
            if code:
                self.notice = f"it ended with an error; see {self._log}"
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.notice = f"it did not finish within {PATIENCE:.0f} s and was ended; see {self._log}"
        if self._dropped:
            self.notice = f"it was too slow for {counted(self._dropped, 'row')}"
        if self.notice:
            self.notice = f"tracker {self.name}: {self.notice}; the run folder is complete"

    def _put(self, message: object) -> None:
        try:
            self._queue.put_nowait(None if message is None else json.dumps(message) + "\n")
        except queue.Full:
            self._dropped += 1

    def _feed(self) -> None:
        pipe: IO[bytes] | None = self._process.stdin
        assert pipe is not None
        with suppress(OSError), pipe:  # if the process is gone, close() says so
            while (line := self._queue.get()) is not None:
                pipe.write(line.encode())
                pipe.flush()


@contextmanager
def mirrored(names: Sequence[str], config: RunConfig, folder: Path) -> Iterator[list[Tracker]]:
    """Trackers of these names while a run trains; a tracker's problem is reported as a line on standard error."""
    trackers: list[Tracker] = []
    try:
        for name in names:
            trackers.append(Tracker(name, config, folder))
        yield trackers
    finally:
        for tracker in trackers:
            tracker.close()
            if tracker.notice:
                print(tracker.notice, file=sys.stderr)
