"""How a command ends after an error: one line on standard error, and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

_LONGEST = 2000
"""Characters of an error's line."""


def fail(message: str, code: int) -> NoReturn:
    """Print the message as one line and end: with exit code 2 for a mistake, 130 for an interruption."""
    # A value that is quoted may be megabytes long, or hold what a terminal takes for commands.
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(message.split()))
    shown = line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
    print(f"mechplateau: {shown}", file=sys.stderr)
    raise SystemExit(code)
