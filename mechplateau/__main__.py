"""`mechplateau`, the command, and `python -m mechplateau`: answers Ctrl-C from the first moment on."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    from mechplateau.cli import main as command

    command()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; while a module is imported, end at once.

    A library that is being loaded may swallow the exception, or die of it with a message of its own.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"mechplateau: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
