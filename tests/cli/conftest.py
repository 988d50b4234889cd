"""The command, called in this process."""

from __future__ import annotations

import logging
import sys

import pytest

from mechplateau import cli


@pytest.fixture
def run_cli(monkeypatch, capfd, tmp_path):
    """Call the command in this process: returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("mechplateau_kernels")
    # The command quiets it for its whole process, which here goes on with other tests.
    level = logger.level

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mechplateau", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capfd.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    yield call
    logger.setLevel(level)
