"""A job's folder on a node that does not see the driver's: laid there as it is at the driver's, and brought back."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mechplateau.files import take_lock, write_whole
from mechplateau.training.cluster.collecting import (
    kept_in,
    manifest_of,
    names_in,
    pieces,
    put_piece,
    snapshot,
    stamp_of,
)

_HELD = ".held"


class Superseded(Exception):
    """This try of the job counts as lost, and another one has started."""


class NodeMirror:
    """Keeps the folder of one try of a job.

    Args:
        ask: calls a method of the desk for this try and gives its answer; see `Desk`.
        name: of the folder, from where jobs are started.
        scratch: a new folder on this node.

    Attributes:
        directory: where the job's process is to be started.
        held: a descriptor that the job's process is to keep open: while it is, the folder is not removed as a leftover.
    """

    def __init__(self, ask: Callable[..., Any], name: str, scratch: Path):
        self._ask, self._scratch = ask, scratch
        self._folder = scratch / "work" / name
        self._kept: frozenset[tuple[str, int]] = frozenset()
        _remove_leftovers(scratch.parent)
        scratch.mkdir(parents=True)
        lock = take_lock(scratch / _HELD)
        if lock is None:
            raise OSError("this system has no file locks, which --collect needs")
        self._lock = lock
        self.directory, self.held = str(scratch / "work"), self._lock.fileno()

    def fetch(self) -> str | None:
        """Lay the folder, and the files that the job reads, as they are at the driver's; why that cannot be, if so."""
        self._folder.mkdir(parents=True)
        answer = self._ask("begin")
        if isinstance(answer, str):
            return answer
        manifest, reads = answer
        for name, stamp in manifest.items():
            self._get(name, self._folder / name, tuple(stamp))
        for name, stamp in reads.items():
            target = Path(self.directory, name)  # an absolute name stays as it is
            if target.is_file() and stamp_of(target) == tuple(stamp):
                continue
            try:
                self._get(name, target, tuple(stamp))
            except OSError as error:
                return f"the job reads {name}, which cannot be laid on this node ({error.strerror or error})"
        self._kept = kept_in(self._folder)
        return None

    def bring(self, final: bool) -> None:
        """Bring back what has changed; unless `final`, only where something new was saved."""
        kept = kept_in(self._folder)
        if not final and kept == self._kept:
            return
        if not names_in(self._folder):
            return
        taken = self._scratch / "taken"
        shutil.rmtree(taken, ignore_errors=True)
        snapshot(self._folder, taken)
        wanted = self._ask("offer", manifest_of(taken))
        if wanted is None:
            raise Superseded
        for name in wanted:
            for offset, piece in pieces(taken / name):
                self._ask("take", name, offset, piece)
        self._ask("commit")
        shutil.rmtree(taken, ignore_errors=True)
        self._kept = kept

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._lock.close()

    def _get(self, name: str, target: Path, stamp: tuple[int, str]) -> None:
        def fetched(partial: Path) -> None:
            put_piece(partial, 0, b"")
            offset = 0
            while piece := self._ask("give", name, offset):
                put_piece(partial, offset, piece)
                offset += len(piece)
            if stamp_of(partial) != stamp:
                raise OSError(f"{name} has changed while it was sent")

        write_whole(target, fetched)


def scratch_folder(name: str) -> Path:
    """Where a try of a job may write on this node."""
    return Path(tempfile.gettempdir(), f"mechplateau-collected-{os.getuid()}", name)


def _remove_leftovers(folder: Path) -> None:
    """Remove the folders of tries whose processes have ended without doing so."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.iterdir():
        with suppress(OSError):
            if (old / _HELD).is_file() and (lock := take_lock(old / _HELD)) is not None:
                shutil.rmtree(old, ignore_errors=True)
                lock.close()
