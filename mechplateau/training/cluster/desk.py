"""The driver's desk: nodes ask here whether to continue, report a job's last line, and deliver what it wrote.

It is a process of the cluster on the driver's machine and ends with the driver; a node that cannot reach it stops its
job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mechplateau.training.cluster.collecting import PIECE, Manifest, Receiver, Stamp, stamp_of


@dataclass(frozen=True)
class Collected:
    """A job whose folder is brought back.

    Attributes:
        folder: on the driver's machine.
        alone: no other process may work there at the same time.
        reads: files that it reads besides, by the names that it has for them → where they are.
    """

    folder: str
    alone: bool
    reads: Mapping[str, str]


class Desk:
    """Knows which try of each job counts: a try that was given up for lost may still run somewhere.

    Args:
        collected: the jobs whose folders are brought back.
    """

    def __init__(self, collected: Mapping[int, Collected]) -> None:
        self._stopping = False
        self._tries: dict[int, int] = {}
        self._lines: dict[int, str] = {}
        self._collected = collected
        self._receivers = {job: Receiver(Path(one.folder)) for job, one in collected.items()}
        self._locks: dict[int, BinaryIO | None] = {}

    def go_on(self, job: int, attempt: int, line: str) -> bool:
        """Whether this try of a job should continue."""
        if not self._counts(job, attempt):
            return False
        if line:
            self._lines[job] = line
        return not self._stopping

    def stop(self) -> list[int]:
        """Have every job save and stop; the jobs that were begun."""
        self._stopping = True
        return sorted(self._tries)

    def last_line(self, job: int) -> str:
        """The last line of a job that has arrived."""
        return self._lines.get(job, "")

    def begin(self, job: int, attempt: int) -> str | tuple[Manifest, Mapping[str, Stamp]]:
        """What a node begins with: the files of the job's folder, and those it reads; or why it may not begin."""
        from mechplateau.files import take_lock

        if not self._counts(job, attempt):
            return "another try of this run has begun"
        own = self._collected[job]
        folder = Path(own.folder)
        folder.mkdir(parents=True, exist_ok=True)
        if own.alone and job not in self._locks:
            try:
                self._locks[job] = take_lock(folder / ".lock")
            except BlockingIOError:
                return f"{folder}: another process is working on this run; wait for it"
        self._receivers[job].drop()
        reads = {name: stamp_of(Path(path)) for name, path in own.reads.items()}
        return self._receivers[job].manifest(), reads

    def give(self, job: int, attempt: int, name: str, offset: int) -> bytes:
        """A piece of a file of the job's folder, or of one that it reads; nothing at the end."""
        own = self._collected[job]
        path = own.reads.get(name) or os.path.join(own.folder, name)
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(PIECE)

    def offer(self, job: int, attempt: int, manifest: Manifest) -> list[str] | None:
        """A node has these files; those that it is to bring, None where its try does not count any more."""
        return self._receivers[job].offer(manifest) if self._counts(job, attempt) else None

    def take(self, job: int, attempt: int, name: str, offset: int, piece: bytes) -> None:
        """A piece of a file that is brought."""
        if self._counts(job, attempt):
            with self._writing(job) as receiver:
                receiver.take(name, offset, piece)

    def commit(self, job: int, attempt: int) -> None:
        """All that was offered was brought."""
        if self._counts(job, attempt):
            with self._writing(job) as receiver:
                receiver.commit()

    def close(self) -> None:
        """Let go of the folders."""
        for lock in self._locks.values():
            if lock is not None:
                lock.close()

    @contextmanager
    def _writing(self, job: int) -> Iterator[Receiver]:
        """RunError where the folder cannot be written (a full disk); then no pieces are left in it."""
        from mechplateau.files import explained

        receiver = self._receivers[job]
        try:
            with explained(receiver.folder):
                yield receiver
        except Exception:
            receiver.drop()
            raise

    def _counts(self, job: int, attempt: int) -> bool:
        newest = max(attempt, self._tries.get(job, 0))
        self._tries[job] = newest
        return attempt == newest
