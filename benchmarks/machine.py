"""The machine that a table of times is from, in one line."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

from mechplateau.runs.environment import processor


def told() -> str:
    """Processor, cores, versions and commit."""
    return (
        f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, "
        f"commit {commit()}."
    )


def commit() -> str:
    """The commit of this checkout; with a plus where files were changed since."""
    run = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "check": True}
    try:
        name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], **run).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], **run).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")
