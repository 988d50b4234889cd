"""Findings about a run after its training, kept beside it so that they are not computed again.

A note is named numbers and arrays about one checkpoint, made with stated settings. Notes of other settings lie beside
it under another name. They are no part of the run: deleting `notes/` only costs time.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechplateau.errors import CheckpointError, RunError
from mechplateau.files import folder_name, put_in_place
from mechplateau.runs.checkpoints import read_description, read_tensors, save_tensors
from mechplateau.runs.layout import Layout, file_of, steps_in


class Notes:
    """Notes of one kind, made with the same settings, one a checkpoint. Made by `Run.notes`.

    Args:
        root: the run's folder.
        kind: what they are, such as "llc".
        settings: what decides their numbers, besides the checkpoint; plain values.
        config_hash: of the run: notes copied from another run do not count.

    Raises:
        ConfigError: the kind cannot begin a folder's name.
    """

    def __init__(self, root: Path, kind: str, settings: Mapping[str, Any], config_hash: str):
        self.settings = {**settings, "config_hash": config_hash}
        plain = json.dumps(self.settings, sort_keys=True)
        self._folder = Layout(root).notes(
            folder_name(kind, "kind"), hashlib.sha256(plain.encode()).hexdigest()[:12]
        )

    def at(self, folder: Path) -> Notes:
        """Notes of the same settings in another folder."""
        other = copy.copy(self)
        other._folder = folder
        return other

    def draft(self, step: int) -> Path:
        """A folder in which another process may write the note of a checkpoint, with `at`, for `take`."""
        return self._folder / f".{Path(file_of(step)).stem}"

    def take(self, step: int) -> None:
        """Put a note that was written to its draft in place; the draft's folder goes, whatever is in it."""
        draft = self.draft(step)
        if self.at(draft).read(step) is not None:
            put_in_place(draft / file_of(step), self._path(step))
        shutil.rmtree(draft, ignore_errors=True)

    def read(self, step: int) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Numbers and arrays of a checkpoint; None where there is no note, or none that can be read."""
        try:
            tensors, description = read_tensors(self._path(step))
        except (CheckpointError, RunError):
            return None
        if description.get("settings") != json.loads(json.dumps(self.settings)):
            return None
        return dict(description["numbers"]), tensors

    def write(self, step: int, numbers: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
        """Keep them; plain values, None where undefined.

        Raises:
            RunError: the folder cannot be written.
        """
        tensors = {name: torch.as_tensor(array) for name, array in (arrays or {}).items()}
        save_tensors(
            self._path(step), tensors, {"step": step, "numbers": dict(numbers), "settings": self.settings}
        )

    def steps(self) -> tuple[int, ...]:
        """Checkpoints that have a note, in order; one that cannot be read is listed too."""
        return steps_in(self._folder)

    def _path(self, step: int) -> Path:
        return self._folder / file_of(step)


def all_notes(root: Path, kind: str, config_hash: str) -> list[Notes]:
    """Every set of notes of this kind beside a run, by settings; those of another run are left out."""
    found = []
    for folder in Layout(root).notes_of(kind):
        for step in steps_in(folder):
            try:
                settings = read_description(folder / file_of(step)).get("settings")
            except (CheckpointError, RunError):
                continue
            if isinstance(settings, dict) and settings.get("config_hash") == config_hash:
                plain = {name: value for name, value in settings.items() if name != "config_hash"}
                found.append(Notes(root, kind, plain, config_hash))
                break
    return found


__all__ = ["Notes", "all_notes"]
