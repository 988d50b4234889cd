"""Errors that a user can cause and fix: one line with what was expected, what came, and what to do.

The command line prints them without a traceback and exits with code 2.
"""

from __future__ import annotations


class UserError(ValueError):
    """Base of every error that the caller can fix."""


class ConfigError(UserError):
    """A configuration names an unknown field or holds a value that is not allowed."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, unsafe, or does not fit the model it is loaded into."""


class RunError(UserError):
    """A run folder is missing, incomplete, in use, or cannot be written."""


class RunInUse(RunError):
    """Another process works on the run folder."""


def counted(number: int, noun: str) -> str:
    """A number with its noun, for a message: "1 checkpoint", "7 checkpoints"; the plural is regular."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
