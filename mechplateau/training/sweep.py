"""Many runs from one command: every combination of settings and seeds, each in a process of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.files import local_path
from mechplateau.runs import is_finished
from mechplateau.schema import override, whole_number
from mechplateau.training.executor import Executor, Job, JobResult, Outcome, job_function, submit
from mechplateau.training.loop import train
from mechplateau.training.trackers import mirrored


@dataclass(frozen=True)
class SweepResult:
    """What became of one run of a sweep.

    Attributes:
        config: its configuration.
        path: its folder.
        outcome: finished now, skipped since it was finished already, or failed.
        message: the last line that a failed run printed.
        tries: how often it was started: more than once if a cluster lost it.
    """

    config: RunConfig
    path: Path
    outcome: Outcome
    message: str = ""
    tries: int = 1


def expand(
    data: Mapping[str, Any], assignments: Sequence[str], seeds: Sequence[int] | None
) -> list[RunConfig]:
    """All configurations of a sweep, seeds innermost.

    `a.b=2,3,4` gives three values; a list or mapping that is one value is written with brackets,
    `a.b=[2,3]`, and so is text with commas in quotes.

    Args:
        data: plain data to begin with.
        assignments: fields with their alternatives.
        seeds: for every combination; None: the data's own, or those of the assignments.

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
    jobs: int | None,
    threads: int,
    device: str,
    tracker: Sequence[str] = (),
    executor: Executor | None = None,
    on_result: Callable[[SweepResult], None] = lambda result: None,
) -> list[SweepResult]:
    """Run what is not finished, `jobs` at a time; one that fails does not stop the others.

    Each run has its own process with `threads` CPU threads, and equals the same run alone to the bit.
    After an interruption the same call runs only what is left. With an `executor` such as
    `mechplateau.training.cluster.on_ray.RayCluster` they run there, and `jobs` may be None: as many as it has room for.
    """
    if jobs is not None and whole_number(jobs, "jobs") < 1:
        raise ConfigError(f"jobs: expected at least 1, got {jobs}")
    root = local_path(runs_dir)
    of_folder = {root / config.run_name: config for config in configs}

    def result_of(done: JobResult) -> SweepResult:
        config = of_folder[done.job.folder]
        return SweepResult(config, done.job.folder, done.outcome, done.message, done.tries)

    given = {"device": device, "tracker": list(tracker)}
    results = submit(
        [
            Job(
                "train",
                {"config": config.data(), **given},
                root / config.run_name,
                threads,
                reads=config.reads,
                alone=True,
            )
            for config in configs
        ],
        workers=jobs,
        executor=executor,
        finished=lambda job: is_finished(job.folder, of_folder[job.folder]),
        on_result=lambda done: on_result(result_of(done)),
    )
    return [result_of(done) for done in results]


@job_function("train")
def _train(
    folder: Path, threads: int, *, config: Mapping[str, Any], device: str, tracker: Sequence[str]
) -> None:
    """Train the run of a folder to its end."""
    chosen = RunConfig.parse(config)
    with mirrored(tracker, chosen, folder) as listeners:
        train(chosen, runs_dir=folder.parent, device=device, threads=threads, listeners=listeners)


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
