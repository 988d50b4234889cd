"""A run that takes a moment, as options of the command."""

from __future__ import annotations

import sys

TINY = [
    "--set", "task.n=4", "--set", "task.p=7", "--set", "task.max_num=6", "--set", "model.d_model=8",
    "--set", "training.batch_size=8", "--set", "evaluation.samples=8",
]  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mechplateau", *arguments]
