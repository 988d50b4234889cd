"""Many runs from one command: every combination of settings and seeds, each in a process of its own."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.runs.layout import Layout
from mechplateau.runs.writer import status_of
from mechplateau.schema import override

Outcome = Literal["finished", "skipped", "failed"]


@dataclass(frozen=True)
class SweepResult:
    """What became of one run of a sweep.

    Attributes:
        config: its configuration.
        path: its folder.
        outcome: finished now, skipped since it was finished already, or failed.
        message: the last line that a failed run printed.
    """

    config: RunConfig
    path: Path
    outcome: Outcome
    message: str = ""


def expand(data: Mapping[str, Any], assignments: Sequence[str], seeds: Sequence[int]) -> list[RunConfig]:
    """All configurations of a sweep, seeds innermost.

    `a.b=2,3,4` stands for three values; a list that is one value is written with brackets, `a.b=[2,3]`.

    Raises:
        ConfigError: one of them is not valid; none is run.
    """
    choices = [_alternatives(assignment) for assignment in assignments]
    configs: dict[str, RunConfig] = {}
    for combination in itertools.product(*choices):
        for seed in seeds:
            config = RunConfig.parse({**override(data, combination), "seed": seed})
            configs[config.run_name] = config
    return list(configs.values())


def sweep(
    configs: Sequence[RunConfig],
    *,
    runs_dir: Path,
    jobs: int,
    threads: int,
    device: str,
    tracker: Sequence[str] = (),
    on_result: Callable[[SweepResult], None] = lambda result: None,
) -> list[SweepResult]:
    """Run what is not finished, `jobs` at a time; one that fails does not stop the others.

    Each run is a process of its own with `threads` CPU threads, and so bitwise what it is alone with as many.
    After an interruption the same call runs only what is left.
    """
    if jobs < 1:
        raise ConfigError(f"jobs: expected at least 1, got {jobs}")
    children: set[subprocess.Popen[str]] = set()
    stopping = threading.Event()

    def one(config: RunConfig) -> SweepResult:
        path = runs_dir / config.run_name
        if status_of(Layout(path)) == "finished":
            result = SweepResult(config, path, "skipped")
        elif stopping.is_set():
            return SweepResult(config, path, "failed", "interrupted")
        else:
            result = _run(config, path, children, runs_dir, threads, device, tracker)
        on_result(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return list(pool.map(one, configs))
        except BaseException:
            # Ctrl-C reaches the children by themselves: each saves and stops.
            stopping.set()
            for child in list(children):
                child.terminate()
            raise


def _run(
    config: RunConfig,
    path: Path,
    children: set[subprocess.Popen[str]],
    runs_dir: Path,
    threads: int,
    device: str,
    tracker: Sequence[str],
) -> SweepResult:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(config.yaml(), encoding="utf-8")
        command = [sys.executable, "-m", "mechplateau", "train", str(file), "--runs-dir", str(runs_dir)]
        command += ["--threads", str(threads), "--device", device, "--quiet"]
        command += [part for name in tracker for part in ("--tracker", name)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        children.add(process)
        try:
            output, _ = process.communicate()
        finally:
            children.discard(process)
    if process.returncode == 0:
        return SweepResult(config, path, "finished")
    lines = output.strip().splitlines()
    return SweepResult(config, path, "failed", lines[-1] if lines else f"exit code {process.returncode}")


def _alternatives(assignment: str) -> list[str]:
    name, separator, text = assignment.partition("=")
    # Commas inside brackets belong to one value.
    values = re.split(r",(?![^\[{]*[\]}])", text)
    return [f"{name}{separator}{value}" for value in values]
