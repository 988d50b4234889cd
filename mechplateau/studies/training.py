"""Train what is missing: recipes become runs, sources first; finished runs are reused by their configuration's hash."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import closing
from pathlib import Path

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, UserError
from mechplateau.progress import Bar, Progress, bars
from mechplateau.runs import Run, is_or_says_finished, load_run
from mechplateau.studies.recipes import NotReady, Recipes, config_of, waves
from mechplateau.training.executor import Executor
from mechplateau.training.sweep import SweepResult, sweep


def ensure(
    recipes: Recipes,
    names: Sequence[str],
    seeds: Sequence[int],
    scale: str,
    *,
    runs_dir: Path,
    jobs: int | None = 1,
    threads: int = 1,
    device: str = "cpu",
    executor: Executor | None = None,
    progress: Progress | str | None = None,
) -> dict[str, list[Run]]:
    """The finished runs of the recipes of these names, trained where they are missing.

    Each run is a process of its own with `threads` threads, and so bitwise what it is alone with as many.

    Args:
        recipes: all there are.
        names: which.
        seeds, scale, runs_dir: with which seeds, at which scale, and where.
        jobs, threads, device: runs at a time, threads of each, and where they train.
        executor: who trains them, as for `sweep`; None: processes on this machine.
        progress: makes a bar of runs, as tqdm does (`mechplateau.progress`), with the name of each that was trained.

    Returns:
        recipe → its runs, one a seed.

    Raises:
        UserError: some run failed; names the first, what it said, and how many others.
    """
    first, second = waves(recipes, names, seeds)

    def configs(wave: Sequence[tuple[str, int]]) -> list[RunConfig]:
        """Of each run once, though several recipes may be the same run at this scale."""
        return _longest([config_of(recipes, name, seed, scale, runs_dir) for name, seed in wave], runs_dir)

    options = {"runs_dir": runs_dir, "jobs": jobs, "threads": threads, "device": device, "executor": executor}
    with closing(bars(progress)(total=len(configs(first)) + len(second), desc="runs")) as bar:
        for wave in (first, second):
            results = sweep(configs(wave), **options, on_result=lambda result: _tell(bar, result))  # type: ignore[arg-type]
            failed = [result for result in results if result.outcome == "failed"]
            if failed:
                more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
                raise UserError(
                    f"{failed[0].path}: failed: {failed[0].message}{more}; rerun the same command to resume"
                )
    return {
        name: [_opened(config_of(recipes, name, seed, scale, runs_dir), runs_dir) for seed in seeds]
        for name in names
    }


def _longest(configs: Sequence[RunConfig], runs_dir: Path) -> list[RunConfig]:
    """Each run once, stopped (`training.stop_at`) where its last recipe does, but not before where it is already."""
    runs: dict[str, list[RunConfig]] = {}
    for config in configs:
        runs.setdefault(config.run_name, []).append(config)
    found = []
    for name, same in runs.items():
        stops = [config.training.stop_at for config in same]
        known = [stop for stop in stops if stop is not None]
        if len(known) < len(stops):  # one of them goes to its end
            found.append(same[stops.index(None)])
        else:
            found.append(same[0].with_(training={"stop_at": max(*known, _reached(runs_dir / name))}))
    return found


def _reached(path: Path) -> int:
    """The last step of which a run folder holds anything; 0 where there is none, or none that can be read."""
    try:
        return load_run(path).farthest
    except UserError:
        return 0


def _tell(bar: Bar, result: SweepResult) -> None:
    bar.update(1)
    if result.outcome != "skipped":
        reason = f": {result.message}" if result.message else ""
        bar.set_postfix_str(f"{result.config.run_name} {result.outcome}{reason}")


def finished_runs(
    recipes: Recipes,
    name: str,
    seeds: Sequence[int],
    scale: str,
    runs_dir: Path,
    without: Container[str] = (),
) -> dict[int, Run]:
    """Seed → the finished run of a recipe, of those there are; those in folders of these names are left out."""
    found: dict[int, Run] = {}
    for seed in seeds:
        try:
            config = config_of(recipes, name, seed, scale, runs_dir)
        except NotReady:
            continue
        path = runs_dir / config.run_name
        if config.run_name not in without and (is_or_says_finished(path) or _stopped_as_asked(path, config)):
            found[seed] = _opened(config, runs_dir)
    return found


def _stopped_as_asked(path: Path, config: RunConfig) -> bool:
    """Whether a run stopped where its recipe stops it (`training.stop_at`), or later."""
    if config.training.stop_at is None or not path.is_dir():
        return False
    try:
        run = load_run(path)
    except UserError:
        return False
    return run.stopped_at is not None and run.stopped_at >= config.training.stop_at


def _opened(config: RunConfig, runs_dir: Path) -> Run:
    """The run of this configuration, which its folder must hold, whatever the folder's name says."""
    path = runs_dir / config.run_name
    try:
        run = Run(path)
    except ConfigError as error:
        raise UserError(f"{path}: cannot be read ({error}); delete the folder to train it again") from None
    # The hash, since where an optimal initialization was read from may be written in another way.
    if run.config.content_hash() != config.content_hash():
        raise UserError(
            f"{path}: its config.yaml is of another run than the folder's name says; "
            "delete the folder to train it again"
        )
    return load_run(path)
