"""Finished steps of an analysis on disk, so that a killed one resumes with the next step.

    settings.yaml                what was measured, and of what
    steps/step512.safetensors    one checkpoint: its sketch as tensors, the rest as JSON in the header
    series.parquet               the table, one row a step
    figure.svg, page.html        what was drawn of it

Each file is written under a temporary name, synced and renamed: a step is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.errors import RunError
from mechplateau.files import TensorFileError, open_safetensors, put_in_place, write_atomic, write_text
from mechplateau.llm.identity import Identity

if TYPE_CHECKING:
    from torch import Tensor

_HEADER = "mechplateau"
_FORMAT = 2
"""Of a step's file. Those without this number left GPT-2's attention biases out of their hashes: void."""

_LONGEST_LABEL = 200
"""Bytes of a checkpoint's name that fit into a file's name with what is put around it."""


@dataclass(frozen=True)
class Example:
    """A prompt and what one checkpoint wrote after it, token by token."""

    prompt: str
    tokens: tuple[str | None, ...]
    """None where it is undefined: logits that are not finite choose no token."""


@dataclass(frozen=True)
class StepRecord:
    """What is kept of one checkpoint."""

    version: str
    """The source's version string of the checkpoint: another one makes the record void."""
    identity: Identity
    measures: Mapping[str, float | None] | None
    """Values by column; None where only the identity was wanted."""
    prompt_ids: str | None = None
    """SHA-256 of the prompts' token ids: measures hold for these only."""
    examples: tuple[Example, ...] = ()
    suppressed: tuple[int, ...] = ()
    """Ids that were never generated."""
    notes: tuple[str, ...] = ()
    """What was chosen among several things in the checkpoint, in words."""


class Store:
    """The folder of one analysis."""

    def __init__(self, folder: Path, settings: str) -> None:
        """Open or begin a folder.

        Args:
            folder: where; made if missing.
            settings: YAML text of all that determines the numbers.

        Raises:
            RunError: the folder holds an analysis with other settings.
        """
        self.folder, self.settings = folder, settings
        path = folder / "settings.yaml"
        if path.is_file() and path.read_text(encoding="utf-8", errors="replace") != settings:
            raise RunError(
                f"{folder}: holds an analysis with other settings; choose another folder or delete it"
            )
        if not path.is_file():
            write_text(path, settings)

    @property
    def table_path(self) -> Path:
        """The table, one row a step."""
        return self.folder / "series.parquet"

    def load(self, label: str, version: str) -> StepRecord | None:
        """The record of a step, if it is there and of this version.

        Raises:
            RunError: it is damaged, cannot be read or was written by a newer mechplateau.
        """
        path = self._path(label)
        try:
            with path.open("rb"):
                pass
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror or error})") from None
        try:
            with open_safetensors(path) as (file, header):
                data = json.loads(header[_HEADER])
                sketch = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return _record(data, sketch, version, path)
        except RunError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            reason = (
                error.reason if isinstance(error, TensorFileError) else f"{type(error).__name__}: {error}"
            )
            raise RunError(f"{path}: damaged ({reason}); delete it and rerun the same command") from None

    def save(self, label: str, record: StepRecord) -> None:
        """Keep a finished step."""
        from safetensors.torch import save_file

        data: dict[str, Any] = {
            "format": _FORMAT,
            "version": record.version,
            "tensors": record.identity.record(),
            "measures": dict(record.measures) if record.measures is not None else None,
            "prompt_ids": record.prompt_ids,
            "examples": [{"prompt": e.prompt, "tokens": list(e.tokens)} for e in record.examples],
            "suppressed": list(record.suppressed),
            "notes": list(record.notes),
        }
        metadata = {_HEADER: json.dumps(data, allow_nan=False)}
        sketch = dict(record.identity.sketch)
        write_atomic(self._path(label), lambda temporary: save_file(sketch, temporary, metadata))

    def draft(self, label: str) -> Path:
        """A folder in which another process may keep a step, in a store of the same settings, for `take`."""
        return self.folder / "steps" / f".{self._path(label).stem}"

    def take(self, label: str) -> None:
        """Put a step that another process has kept in place."""
        written = self.draft(label) / "steps" / self._path(label).name
        if written.is_file():
            put_in_place(written, self._path(label))

    def _path(self, label: str) -> Path:
        # A folder's name may take all the bytes that a file's name has; here some go to the ending.
        if len(os.fsencode(label)) > _LONGEST_LABEL:
            label = f"{label[:40]}-{hashlib.sha256(os.fsencode(label)).hexdigest()[:16]}"
        return self.folder / "steps" / f"{label}.safetensors"


def _record(
    data: dict[str, Any], sketch: Mapping[str, Tensor], version: str, path: Path
) -> StepRecord | None:
    kind = data.get("format", 1)
    if kind > _FORMAT:
        raise RunError(f"{path}: written by a newer mechplateau; update this one, or choose another folder")
    if kind < _FORMAT or data["version"] != version:
        return None
    measures = data["measures"]
    if data["tensors"].keys() != sketch.keys():
        raise ValueError("its tensors are not those of its header")
    if measures is not None and not measures.keys() >= {"cos_final", "repetition"}:
        raise ValueError("measures are missing")
    return StepRecord(
        version=version,
        identity=Identity.from_record(data["tensors"], sketch),
        measures=measures,
        prompt_ids=data["prompt_ids"],
        examples=tuple(Example(e["prompt"], tuple(e["tokens"])) for e in data["examples"]),
        suppressed=tuple(data["suppressed"]),
        notes=tuple(data["notes"]),
    )
