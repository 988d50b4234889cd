"""File names in a run folder. Only this package uses them.

config.yaml                        the whole configuration
environment.json                   versions, machine, threads; one entry a session
state.json                         running, interrupted, failed or finished, the step reached, the error
metrics.parquet                    one row an evaluation step (metrics.part.jsonl while running)
checkpoints/step_000120.safetensors    weights, by TransformerLens's names
maps/step_000120.safetensors       batch-mean attention maps and cosine matrices at checkpoints
resume/step_000120.safetensors     weights and optimizer state to resume from
notes/llc-1a2b3c4d5e6f/            later findings, with settings of this hash; one file a checkpoint

`--tracker NAME` adds a folder NAME, whose files are the tracker's own. Nothing here is read from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mechplateau.errors import RunError

REMEDY = "put a copy back, or rename the run's folder to train it from the start"
"""What to do about a file of a run that is lost or damaged."""

_STEP = re.compile(r"step_(\d+)\.safetensors")


@dataclass(frozen=True)
class Layout:
    """Paths of one run folder."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.parquet"

    @property
    def metrics_part(self) -> Path:
        return self.root / "metrics.part.jsonl"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    def checkpoint(self, step: int) -> Path:
        return self.root / "checkpoints" / file_of(step)

    def maps(self, step: int) -> Path:
        return self.root / "maps" / file_of(step)

    def resume(self, step: int) -> Path:
        return self.root / "resume" / file_of(step)

    def notes(self, kind: str, settings_hash: str) -> Path:
        return self.root / "notes" / f"{kind}-{settings_hash}"

    def notes_of(self, kind: str) -> list[Path]:
        """Folders of notes of a kind, each of its own settings."""
        return sorted((self.root / "notes").glob(f"{kind}-*"))

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where files of single steps lie."""
        return tuple(self.root / name for name in ("checkpoints", "maps", "resume"))

    def files(self) -> list[Path]:
        """Where the run's own files lie, and what there is of single steps."""
        return [
            *(self.config, self.environment, self.state, self.metrics, self.metrics_part),
            *map(self.checkpoint, self.checkpoint_steps()),
            *map(self.maps, self.maps_steps()),
            *map(self.resume, self.resume_steps()),
        ]

    def checkpoint_steps(self) -> tuple[int, ...]:
        """Steps whose weights are kept, in order; what a killed write left behind is not listed.

        Raises:
            RunError: the folder may not be read.
        """
        return steps_in(self.root / "checkpoints")

    def maps_steps(self) -> tuple[int, ...]:
        """Steps whose maps are kept, in order."""
        return steps_in(self.root / "maps")

    def resume_steps(self) -> tuple[int, ...]:
        """Steps from which the run can resume, in order."""
        return steps_in(self.root / "resume")


def step_named(path: Path) -> int | None:
    """The step that a file's name gives; None where the name is another."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else None


def file_of(step: int) -> str:
    """The name of a file that belongs to a step."""
    return f"step_{step:06d}.safetensors"


def steps_in(folder: Path) -> tuple[int, ...]:
    """The steps of the files in a folder, in order."""
    if not folder.is_dir():
        return ()
    try:
        return tuple(sorted(step for path in folder.iterdir() if (step := step_named(path)) is not None))
    except OSError as error:
        raise RunError(f"{folder}: cannot be read ({error.strerror or error})") from None
