"""Collected folders: what a node writes is copied to the driver's machine, whole and checked.

A folder's files are known by size and SHA-256. What has changed is sent in pieces beside its place, checked, and then
put there in an order in which a run can resume from its folder at any moment: the files to resume from come last.
Hidden files (locks, unfinished writes) stay where they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mechplateau.files import put_in_place

PIECE = 4 * 2**20
"""Bytes that are sent at a time."""
_RESUME = "resume"
_PIECES = ".tmp-collected-"
_KEPT = (".safetensors", ".parquet")
"""Files that are written whole and never changed: a new one is worth bringing back."""

Stamp = tuple[int, str]
"""Size and SHA-256."""
Manifest = Mapping[str, Stamp]
"""What a folder holds: path in it → stamp."""


class NotWhole(Exception):
    """A file came otherwise than it was sent."""


def names_in(folder: Path) -> list[str]:
    """The files of a folder, those to resume from first: what is read after them is not older."""
    found = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts) and path.is_file()
    ]
    return sorted(found, key=lambda name: (not name.startswith(f"{_RESUME}/"), name))


def stamp_of(path: Path) -> Stamp:
    """Size and SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(PIECE), b""):
            digest.update(piece)
        return file.tell(), digest.hexdigest()


def manifest_of(folder: Path) -> Manifest:
    """What a folder holds; a file that is removed meanwhile is left out."""
    found = {}
    for name in names_in(folder):
        with contextlib.suppress(FileNotFoundError):
            found[name] = stamp_of(folder / name)
    return found


def kept_in(folder: Path) -> frozenset[tuple[str, int]]:
    """Names and times of the files that are written whole; where they are others than before, something was saved."""
    found = set()
    for name in names_in(folder):
        if name.endswith(_KEPT):
            with contextlib.suppress(FileNotFoundError):
                found.add((name, (folder / name).stat().st_mtime_ns))
    return frozenset(found)


def snapshot(folder: Path, into: Path) -> None:
    """Copy a folder's present files elsewhere on the same disk, while a run works in it.

    Files that are written whole are linked, the others copied. The order matters: a file to resume from is taken before
    the rows that belong to it.
    """
    for name in names_in(folder):
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if name.endswith(_KEPT):
                os.link(folder / name, target)
            else:
                shutil.copyfile(folder / name, target)


def pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """A file's bytes, a piece at a time, each with where it begins."""
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield file.tell() - len(piece), piece


def put_piece(path: Path, offset: int, piece: bytes) -> None:
    """Write a piece of a file; the first one makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(piece)


class Receiver:
    """The driver's folder of a job, into which is brought what a node has written.

    Args:
        folder: where.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._offered: dict[str, Stamp] = {}
        self._wanted: list[str] = []
        self._known: set[str] = set()

    def manifest(self) -> Manifest:
        """What there is, for a node to begin with."""
        found = manifest_of(self.folder)
        self._known = set(found)
        return found

    def offer(self, manifest: Manifest) -> list[str]:
        """A node has these files; those that are to be sent."""
        own = manifest_of(self.folder)
        self._offered = dict(manifest)
        self._wanted = [name for name, stamp in manifest.items() if own.get(name) != tuple(stamp)]
        return self._wanted

    def take(self, name: str, offset: int, piece: bytes) -> None:
        """A piece of one of them."""
        put_piece(self._piece(name), offset, piece)

    def commit(self) -> None:
        """Put in place what was sent, once all of it is found whole; remove what the node has removed.

        Raises:
            NotWhole: a file is not as it was offered; then nothing is changed.
            OSError: it cannot be written.
        """
        for name in self._wanted:
            piece = self._piece(name)
            if not piece.exists():
                put_piece(piece, 0, b"")
            if stamp_of(piece) != tuple(self._offered[name]):
                raise NotWhole(f"{self.folder / name}: did not come whole")
        for name in sorted(self._wanted, key=lambda name: (name.startswith(f"{_RESUME}/"), name)):
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            put_in_place(self._piece(name), target)
        for name in self._known - set(self._offered):
            (self.folder / name).unlink(missing_ok=True)
        _remove_empty(self.folder, {str(Path(name).parent) for name in self._known - set(self._offered)})
        self._known = set(self._offered)
        self._wanted = []

    def drop(self) -> None:
        """Remove pieces that were not put in place."""
        for piece in self.folder.glob(f"{_PIECES}*"):
            piece.unlink(missing_ok=True)

    def _piece(self, name: str) -> Path:
        return self.folder / f"{_PIECES}{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _remove_empty(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            if name != ".":
                (folder / name).rmdir()
