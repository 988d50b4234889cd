"""A number with its noun, in the singular or the plural."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Such as "1 checkpoint" and "7 checkpoints"; the plural is regular."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


__all__ = ["counted"]
