"""A run that takes a moment, and what its folder holds."""

from __future__ import annotations

from pathlib import Path

from mechplateau.config import RunConfig
from mechplateau.runs.checkpoints import read_tensors, save_tensors

CONFIG = RunConfig.for_task(
    "mws",
    task={"n": 4, "k": 2, "p": 7, "max_num": 6},
    model={"d_model": 8, "n_heads": 2},
    training={"steps": 6, "batch_size": 8, "lr": 1e-2},
    evaluation={"samples": 8},
    checkpoints={"every": 2},
)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def rewritten(path: Path, **changes: object) -> None:
    """Save a file again with something else in its description."""
    tensors, description = read_tensors(path)
    save_tensors(path, tensors, {k: v for k, v in {**description, **changes}.items() if k != "format"})
