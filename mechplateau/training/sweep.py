"""Many runs from one command: every combination of settings and seeds, each in a process of its own."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, UserError
from mechplateau.paths import local_path
from mechplateau.runs.layout import Layout
from mechplateau.runs.record import is_finished
from mechplateau.schema import override
from mechplateau.training.interrupt import terminable

_PR_SET_PDEATHSIG = 1

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


def expand(
    data: Mapping[str, Any], assignments: Sequence[str], seeds: Sequence[int] | None
) -> list[RunConfig]:
    """All configurations of a sweep, seeds innermost.

    `a.b=2,3,4` stands for three values; a list or mapping that is one value is written with brackets,
    `a.b=[2,3]`, and so is text with commas in quotes.

    Args:
        data: plain data to begin with.
        assignments: fields with their alternatives.
        seeds: of every combination; None: the data's own, or what the assignments say.

    Raises:
        ConfigError: one of them is not valid, or seeds are given twice; none is run.
    """
    if seeds is not None and any(
        assignment.partition("=")[0].strip() == "seed" for assignment in assignments
    ):
        raise ConfigError("seed: given both as a number of seeds and with --set; give one of them")
    choices = [_alternatives(assignment) for assignment in assignments]
    configs: dict[str, RunConfig] = {}
    for combination in itertools.product(*choices):
        chosen = override(data, combination)
        for own in [{}] if seeds is None else [{"seed": seed} for seed in seeds]:
            config = RunConfig.parse({**chosen, **own})
            same = configs.setdefault(config.run_name, config)
            if same.training.stop_at != config.training.stop_at:
                raise ConfigError(
                    f"training.stop_at: expected one for a run, got {same.training.stop_at} and "
                    f"{config.training.stop_at} for {config.run_name}, whose name does not count it"
                )
            configs[config.run_name] = config
    return list(configs.values())


def sweep(
    configs: Sequence[RunConfig],
    *,
    runs_dir: str | Path,
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
    runs_dir = local_path(runs_dir)
    children: set[subprocess.Popen[str]] = set()
    stopping = threading.Event()

    def one(config: RunConfig) -> SweepResult:
        path = runs_dir / config.run_name
        try:
            finished = is_finished(Layout(path), config)
        except UserError as error:
            result = SweepResult(config, path, "failed", str(error))
            on_result(result)
            return result
        if finished:
            result = SweepResult(config, path, "skipped")
        elif stopping.is_set():
            return SweepResult(config, path, "failed", "interrupted")
        else:
            result = _run(config, path, children, runs_dir, threads, device, tracker)
        on_result(result)
        return result

    with ThreadPoolExecutor(jobs) as pool, terminable():
        try:
            return list(pool.map(one, configs))
        except BaseException:
            # Each child saves and stops; a second run of this command goes on with them.
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
    command = [sys.executable, "-m", "mechplateau", "train", "-", "--runs-dir", str(runs_dir)]
    command += ["--threads", str(threads), "--device", device, "--quiet"]
    command += ["--with-parent", str(os.getpid())]
    command += [part for name in tracker for part in ("--tracker", name)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    children.add(process)
    try:
        output, _ = process.communicate(config.yaml())
    finally:
        children.discard(process)
    if process.returncode == 0:
        return SweepResult(config, path, "finished")
    lines = output.strip().splitlines()
    return SweepResult(config, path, "failed", lines[-1] if lines else f"exit code {process.returncode}")


def stop_with_parent(parent: int) -> None:
    """Ask Linux to send this process SIGTERM when its parent ends, however it ends: a run then saves and stops.

    Args:
        parent: its process number; where it has ended by now, SIGTERM comes at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            signal.raise_signal(signal.SIGTERM)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _alternatives(assignment: str) -> list[str]:
    """Split the values at commas that are outside brackets and quotes."""
    name, separator, text = assignment.partition("=")
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += character
    return [f"{name}{separator}{value}" for value in values]
