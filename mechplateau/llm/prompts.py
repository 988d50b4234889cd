"""The prompts after which the checkpoints generate."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from mechplateau.errors import ConfigError
from mechplateau.files import local_path

_T = TypeVar("_T")

DEFAULT = "default"
ARC_EASY = "arc-easy"


def load_prompts(source: str | Path = DEFAULT) -> list[str]:
    """Prompts in their order.

    Args:
        source: `default` (100 short questions that come with this package), `arc-easy` (the questions of the
            test split of ARC-Easy, the paper's choice; needs `datasets` and its copy of the data or a
            network), or the path of a UTF-8 text file with one prompt a line (blank lines are skipped).

    Raises:
        ConfigError: no such file, no prompt in it, or ARC-Easy cannot be had.
    """
    if source == DEFAULT:
        return _lines(files("mechplateau.llm").joinpath("questions.txt").read_text(encoding="utf-8"))
    if source == ARC_EASY:
        return _arc_easy()
    try:
        # utf-8-sig: a mark at the beginning, which some editors write, is not part of the first prompt.
        prompts = _lines(local_path(source).read_text(encoding="utf-8-sig"))
    # ValueError: also an empty name, or one with a zero byte.
    except (OSError, ValueError) as error:
        reason = (
            "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", error)
        )
        raise ConfigError(
            f"prompts: expected {DEFAULT}, {ARC_EASY} or a text file with one prompt a line, "
            f"got {str(source)!r} ({reason})"
        ) from None
    if not prompts:
        raise ConfigError(f"prompts: {source} has no line with text")
    return prompts


def choose(prompts: Sequence[_T], n: int, seed: int | None) -> list[_T]:
    """The first `n` prompts (seed None), or `n` at random without repetition; all of them if there are
    fewer."""
    if seed is None:
        return list(prompts[:n])
    import torch

    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(seed))
    return [prompts[i] for i in order[:n].tolist()]


def _lines(text: str) -> list[str]:
    # Only line feeds end a prompt: splitlines() would also cut at U+2028 and form feeds.
    return [line for line in (line.rstrip("\r") for line in text.split("\n")) if line.strip()]


def _arc_easy() -> list[str]:
    try:
        from datasets import load_dataset

        with _quiet_retries():
            return list(load_dataset("allenai/ai2_arc", "ARC-Easy", split="test")["question"])
    # datasets raises whatever its transport raises; each means that the questions are not to be had here.
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"prompts: the dataset allenai/ai2_arc (ARC-Easy, test split) is not at hand ({reason}); give a text "
            "file with one question a line instead, or use the default"
        ) from None


@contextlib.contextmanager
def _quiet_retries() -> Iterator[None]:
    """Without a line for each of the hub's attempts: how they end is said once."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
