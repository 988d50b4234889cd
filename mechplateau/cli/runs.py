"""`mechplateau train`, `config`, `show`, `list`, `report`, `sweep` and `demo`: runs, one or many."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechplateau.cli.executors import LOCAL, Address, Collect, ExecutorName, GpusPerRun, Place, Retries
from mechplateau.cli.failing import fail
from mechplateau.cli.options import OUTPUT_OPTION, PATH_OPTION, Device, Jobs
from mechplateau.errors import UserError
from mechplateau.files import local_path

if TYPE_CHECKING:
    from mechplateau.config import RunConfig
    from mechplateau.runs import Run

Source = Annotated[
    str,
    typer.Argument(
        metavar="TASK_OR_FILE", help="A task's name (mws, …), a YAML file, or - for standard input."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Override a setting, such as training.steps=100; repeatable."
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset", metavar="NAME", help="Named settings of the task, such as small; --set wins over them."
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of weights and data; overrides the file's.")]
RunsDir = Annotated[Path, typer.Option(help="Where run folders lie.", **PATH_OPTION)]
Threads = Annotated[int | None, typer.Option(help="CPU threads (default: all; a resumed run: as before).")]
Trackers = Annotated[
    list[str] | None,
    typer.Option("--tracker", help="Also mirror rows to wandb or tensorboard; repeatable."),
]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's folder, name, or the beginning of its name.")
]


def train(
    source: Source,
    set_: Set = None,
    preset: Preset = None,
    seed: Seed = None,
    device: Device = "cpu",
    runs_dir: RunsDir = Path("runs"),
    threads: Threads = None,
    tracker: Trackers = None,
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph", help="Run updates and measurements as CUDA graphs (adam, adamw).")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the run's folder only.")] = False,
) -> None:
    """Train a run to its end, or resume it; a finished run is left as it is.

    Ctrl-C saves. Rerun the same command to resume.
    """
    config = _config(source, preset, set_, seed)
    run = _train(config, device, runs_dir, threads, tracker or [], quiet, cuda_graph)
    if quiet:
        print(run.path)
    else:
        _print_run(run)


def job(with_parent: Annotated[int, typer.Option("--with-parent")]) -> None:
    """Do a job that the calling process writes to standard input."""
    from mechplateau.errors import RunInUse
    from mechplateau.training import RunInterrupted
    from mechplateau.training.executor import IN_USE, STOPPED, perform, stop_with_parent

    stop_with_parent(with_parent)
    try:
        perform(sys.stdin.buffer)
    except RunInterrupted as interruption:
        fail(str(interruption), STOPPED)
    except RunInUse as error:
        fail(str(error), IN_USE)


def config(source: Source, set_: Set = None, preset: Preset = None, seed: Seed = None) -> None:
    """Print the whole configuration as YAML."""
    print(_config(source, preset, set_, seed).yaml(), end="")


def columns(source: Source, set_: Set = None, preset: Preset = None) -> None:
    """Print what the columns of a run's table are, as a table in Markdown."""
    from mechplateau.measurements import markdown

    print(markdown(_config(source, preset, set_, None).columns), end="")


def show(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="A run's folder, name, or the beginning of its name."),
    ],
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Print a run's results; several runs are shown side by side."""
    from mechplateau.cli.console import print_comparison

    found = [find_run(run, runs_dir) for run in runs]
    if len(found) == 1:
        _print_run(found[0])
    else:
        print_comparison(found)


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="One run, or several to compare.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The HTML file; - for standard output (default: report.html in the run's folder).",
            **OUTPUT_OPTION,
        ),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write the report of a run as one HTML file that needs no network; several runs are compared."""
    from mechplateau.report import save_report
    from mechplateau.views import is_stdout

    _expect_cpu()
    path = save_report([find_run(run, runs_dir) for run in runs], output)
    if not is_stdout(path):  # there the page itself was written
        print(path)


def list_(
    task: Annotated[str | None, typer.Option(help="Only runs of this task.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="FIELD=VALUE",
            help="Only runs with this setting, such as training.lr=3e-4; repeatable.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="COLUMN", help="Order by a column; -COLUMN: the largest first."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """List the runs with the settings that differ and their results."""
    from mechplateau.cli.console import print_runs
    from mechplateau.report.overview import chosen_runs, overview, sorted_by
    from mechplateau.runs import list_runs, unreadable_runs

    runs, damaged = list_runs(runs_dir), unreadable_runs(runs_dir)
    if task is not None or where:
        runs, damaged = chosen_runs(runs, task=task, where=where or []), {}
    table = overview(runs, unreadable=lambda run, why: damaged.update({run.name: why}))
    table = sorted_by(table, sort)
    if csv:
        print(table.to_csv(index=False), end="")
        return
    found = "No such run" if task is not None or where else "No runs"
    print_runs(table, damaged, f"{found} in {runs_dir}; `mechplateau train mws` makes one.")


def sweep(
    source: Source,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=A,B,C", help="Values to combine, such as task.k=2,3,4; repeatable."
        ),
    ] = None,
    preset: Preset = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="How many seeds, counted from --first-seed (default: the file's own seed)."),
    ] = None,
    first_seed: Annotated[int, typer.Option(help="The first of --seeds.")] = 0,
    jobs: Jobs = None,
    device: Device = "cpu",
    runs_dir: RunsDir = Path("runs"),
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of each run (default: cores / jobs; on Ray 1).")
    ] = None,
    tracker: Trackers = None,
    executor: ExecutorName = LOCAL,
    address: Address = None,
    gpus_per_run: GpusPerRun = None,
    collect: Collect = False,
    retries: Retries = None,
) -> None:
    """Run every combination of settings and seeds; finished runs are skipped, failed ones do not stop the others."""
    from mechplateau.cli.console import print_sweep, sweep_progress
    from mechplateau.training.sweep import expand
    from mechplateau.training.sweep import sweep as run_sweep

    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds: expected at least 1, got {seeds}")
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs: expected at least 1, got {jobs}")
    place = Place(executor, address, gpus_per_run, collect, retries, device)
    threads_each = place.threads(threads, jobs)
    _check_trackers(tracker)
    chosen = None if seeds is None else range(first_seed, first_seed + seeds)
    configs = expand(_data(source, preset), set_ or [], chosen)
    with place.joined() as cluster, sweep_progress(configs) as on_result:
        results = run_sweep(
            configs,
            runs_dir=runs_dir,
            jobs=jobs,
            threads=threads_each,
            device=device,
            tracker=tracker or [],
            executor=cluster,
            on_result=on_result,
        )
    failed = {result.path for result in results if result.outcome == "failed"}
    print_sweep([result.path for result in results], failed, runs_dir)
    if failed:
        raise typer.Exit(1)


def demo(runs_dir: RunsDir = Path("runs"), device: Device = "cpu", threads: Threads = None) -> None:
    """Train moving window sum at the paper's size, find its plateau and write the report: a few minutes."""
    from mechplateau.cli.console import print_run
    from mechplateau.config import RunConfig
    from mechplateau.report import save_report

    run = _train(RunConfig.for_task("mws"), device, runs_dir, threads, [], quiet=False)
    path = save_report(run)
    print_run(run)
    print(f"Report: {path}")


def _data(source: str, preset: str | None) -> dict[str, Any]:
    """Plain data of a task's name and preset, a YAML file, or (for `-`) what comes on standard input."""
    from mechplateau.config import task_settings
    from mechplateau.schema import read_yaml

    path = local_path(source)
    if source != "-" and path.suffix not in (".yaml", ".yml") and not _is_file(path):
        return task_settings(source, preset)
    if preset is not None:
        raise UserError(
            f"--preset {preset}: expected a task's name beside it, got the file {source}; a file has its own settings"
        )
    if source == "-":
        return _with_task_fields(read_yaml(sys.stdin.read(), "standard input"))
    try:
        return _with_task_fields(read_yaml(path.read_text(encoding="utf-8"), str(path)))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"{path}: cannot be read ({reason}); expected a YAML file") from None


def _with_task_fields(data: dict[str, Any]) -> dict[str, Any]:
    """`task: mws` is short for `task: {name: mws}`; overrides of its fields need the long form."""
    return {**data, "task": {"name": data["task"]}} if isinstance(data.get("task"), str) else data


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for the system, say
        return False


def _config(source: str, preset: str | None, assignments: list[str] | None, seed: int | None) -> RunConfig:
    from mechplateau.config import RunConfig
    from mechplateau.schema import override

    data = override(_data(source, preset), assignments or [])
    if seed is not None:
        data["seed"] = seed
    return RunConfig.parse(data)


def _train(
    config: RunConfig,
    device: str,
    runs_dir: Path,
    threads: int | None,
    trackers: list[str],
    quiet: bool,
    cuda_graph: bool = False,
) -> Run:
    from contextlib import ExitStack

    from mechplateau.cli.console import training_progress
    from mechplateau.runs import is_finished
    from mechplateau.training import RunInterrupted, train
    from mechplateau.training.loop import check_request
    from mechplateau.training.trackers import mirrored

    _check_trackers(trackers)
    folder = runs_dir / config.run_name
    finished = is_finished(folder, config)
    if not finished:
        check_request(config, device, threads, cuda_graph)
    if device == "cpu":
        _expect_cpu()
    if not finished:
        # What takes seconds to import, before anything is drawn that Ctrl-C would leave on the screen.
        import mechplateau.models.transformer  # noqa: F401
    try:
        with ExitStack() as stack:
            listeners: list[Any] = []
            if not quiet:
                listeners.append(stack.enter_context(training_progress(config)))
                if not finished:
                    listeners += _rate_of(config, device)
            listeners += stack.enter_context(mirrored([] if finished else trackers, config, folder))
            return train(
                config,
                runs_dir=runs_dir,
                device=device,
                threads=threads,
                listeners=listeners,
                cuda_graph=cuda_graph,
            )
    except RunInterrupted as interruption:
        fail(str(interruption), 130)


def _rate_of(config: RunConfig, device: str) -> list[Any]:
    """For a size that is made for a GPU: a word of that on a CPU, and one on how fast it is after some steps."""
    from mechplateau.training.arithmetic import Rate, made_for_a_gpu, tflop_of_a_step

    if not made_for_a_gpu(config):
        return []
    if device == "cpu":
        print(
            f"{tflop_of_a_step(config):.3g} TFLOP a step: made for a GPU (--device cuda). Ctrl-C saves, and the same "
            "command resumes.",
            file=sys.stderr,
        )
    return [Rate(config, device, lambda text: print(text, file=sys.stderr))]


def _expect_cpu() -> None:
    """That no GPU kernel runs on a CPU needs no notice where a CPU was requested."""
    import logging

    logging.getLogger("mechplateau_kernels").setLevel(logging.ERROR)


def _check_trackers(names: list[str] | None) -> None:
    from mechplateau.training.trackers import check_tracker

    for name in names or []:
        check_tracker(name)


def find_run(name: str, runs_dir: Path) -> Run:
    """A run by folder, name, or the beginning of a name that no other shares."""
    from mechplateau.errors import RunError
    from mechplateau.runs import Run, load_run

    def exists(path: Path) -> bool:
        try:
            return Run.exists(path)
        except RunError:  # a name too long for the system, say
            return False

    for path in (local_path(name), runs_dir / name):
        if exists(path):
            return load_run(path)
    matches = sorted(path for path in runs_dir.glob("*") if path.name.startswith(name) and exists(path))
    if len(matches) == 1:
        return load_run(matches[0])
    if matches:
        raise RunError(
            f"{name}: several runs begin so: {', '.join(path.name for path in matches[:5])}; give more of the name"
        )
    if (folder := local_path(name)).is_dir() and any(folder.glob("*/config.json")):
        raise RunError(f"{name}: checkpoints of a language model, not a run; use `mechplateau llm {name}`")
    raise RunError(
        f"{name}: no such run in {runs_dir}; `mechplateau list --runs-dir {runs_dir}` shows the runs there are"
    )


def _print_run(run: Run) -> None:
    from mechplateau.cli.console import print_run

    print_run(run)
