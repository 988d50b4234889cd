"""The command line: one file a group of commands, every heavy import inside its command: help answers at once."""

from mechplateau.cli.app import main

__all__ = ["main"]
