"""`mechplateau llc` and `stages`: learning coefficients and stages of a run. Heavy imports are inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechplateau.cli.executors import LOCAL, Address, Collect, ExecutorName, GpusPerRun, Place, Retries
from mechplateau.cli.options import PATH_OPTION, Device
from mechplateau.cli.runs import RunName, RunsDir, find_run
from mechplateau.errors import UserError

if TYPE_CHECKING:
    from mechplateau.development import LlcTable, StagesBesideLoss
    from mechplateau.runs import Run
    from mechplateau.views.figure import PaperFigure

Threads = Annotated[
    int | None, typer.Option(help="CPU threads (default: all; with --jobs cores / jobs; on Ray 1).")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Checkpoints at a time, each in a process of its own (default: one after the other in this one; "
        "on Ray as many as it has room for)."
    ),
]


def llc(
    run: RunName,
    steps: Annotated[
        str | None,
        typer.Option(
            help="all, or kept steps and phases: 0,120,during,after (default: before, during and after the "
            "plateau; all where there is none)."
        ),
    ] = None,
    step_size: Annotated[
        float | None, typer.Option(help="ε (default: the largest that the curvature allows).")
    ] = None,
    n_beta: Annotated[
        float | None, typer.Option(help="nβ (default: n / ln n, n the samples that the run trains on).")
    ] = None,
    localization: Annotated[
        float, typer.Option(help="γ, the pull back to the checkpoint's weights.")
    ] = 100.0,
    chains: Annotated[int, typer.Option(help="Chains.")] = 4,
    draws: Annotated[int, typer.Option(help="Steps a chain that count.")] = 200,
    burn_in: Annotated[int, typer.Option(help="Burn-in steps, which are not counted.")] = 0,
    batch_size: Annotated[int | None, typer.Option(help="Samples a step (default: the run's).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of data and noise.")] = 0,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part", metavar="WEIGHTS", help="Move only these weights, a name or a pattern; repeatable."
        ),
    ] = None,
    elasticity: Annotated[
        bool, typer.Option(help="Sample at twice nβ too, which the verdict local needs; it doubles the time.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Also draw a figure there (.pdf, .svg or .png).", **PATH_OPTION),
    ] = None,
    device: Device = "cpu",
    jobs: Jobs = None,
    threads: Threads = None,
    runs_dir: RunsDir = Path("runs"),
    executor: ExecutorName = LOCAL,
    address: Address = None,
    gpus_per_run: GpusPerRun = None,
    collect: Collect = False,
    retries: Retries = None,
) -> None:
    """Estimate the local learning coefficient at a run's checkpoints, with a verdict on each estimate.

    Each checkpoint's result is kept beside the run. Rerun the same command to resume after Ctrl-C.
    """
    from mechplateau.cli.bars import shown
    from mechplateau.cli.estimates import print_estimates
    from mechplateau.development import llc_over_run
    from mechplateau.training.loop import torch_threads

    place = Place(executor, address, gpus_per_run, collect, retries, device)
    found = find_run(run, runs_dir)
    chosen = _steps(found, steps)
    threads_each = place.threads(threads, jobs)
    with place.joined() as cluster, torch_threads(threads):
        estimates = llc_over_run(
            found,
            chosen,
            step_size=step_size,
            n_beta=n_beta,
            localization=localization,
            chains=chains,
            draws=draws,
            burn_in=burn_in,
            seed=seed,
            batch_size=batch_size,
            elasticity=elasticity,
            parts=part or None,
            device=device,
            jobs=jobs,
            threads=threads_each,
            executor=cluster,
            progress=shown,
        )
    print_estimates(estimates)
    if out is not None:
        print(_draw(found, estimates).save(out))


def stages(
    run: RunName,
    column: Annotated[
        str | None,
        typer.Option(
            help="Column of the run's table (default: attention progress where there is one, else the loss)."
        ),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Find where a column of a run turns or pauses, with the loss's own stages beside it."""
    from mechplateau.development import stages as find_stages
    from mechplateau.signs import LOSS, progress_column

    found = find_run(run, runs_dir)
    metrics = found.metrics
    chosen = column or progress_column(metrics) or LOSS
    measured = metrics["step"][metrics["step"] > 0]
    if measured.empty:
        raise UserError(f"{found.path}: nothing was measured after step 0 yet; let the run train further")
    # The usual start is for runs of many thousand steps; here a tenth of the run is left out, as there.
    _print_stages(find_stages(metrics, chosen, start=max(1.0, float(measured.max()) / 100)))


def _steps(run: Run, text: str | None) -> list[int]:
    """Kept steps, each once, in order."""
    if text is None:
        phases = run.phases
        found = [step for step in (phases.before, phases.during, phases.after) if step is not None]
        return found if len(found) == 3 else list(run.steps)
    if text.strip() == "all":
        return list(run.steps)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(
            f"--steps: expected all, or steps and phases such as 0,120,during,after; got {text!r}"
        )
    known: list[Any] = [int(name) if name.isdigit() else name for name in names]
    return sorted({run.step_of(name) for name in known})


def _print_stages(found: StagesBesideLoss) -> None:
    print(found)


def _draw(run: Run, estimates: LlcTable) -> PaperFigure:
    from mechplateau.report.development import llc_figure

    return llc_figure(run, estimates)
