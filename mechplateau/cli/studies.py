"""`mechplateau figure`, `figures`, `reproduce` and `claims`: a study, figure by figure."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechplateau.cli import bars
from mechplateau.cli.executors import LOCAL, Address, Collect, ExecutorName, GpusPerRun, Place, Retries
from mechplateau.cli.options import PATH_OPTION, Device, Jobs
from mechplateau.devices import TRAINABLE, device_named
from mechplateau.errors import UserError

if TYPE_CHECKING:
    from mechplateau.studies import Figure, Study
    from mechplateau.studies.claims import Outcome
    from mechplateau.training.executor import Executor

DEFAULT_STUDY = "plateau"
"""The study that is meant where none is named."""
WIDEST = 100
"""Columns that a claim's lines take at most."""

ScaleOption = Annotated[
    str,
    typer.Option("--scale", metavar="NAME", help="paper, or a preset of the tasks: small takes minutes."),
]
StudyName = Annotated[
    str, typer.Argument(metavar="[STUDY]", help="The study's name; the plateau paper's if left out.")
]
RunsDir = Annotated[
    Path, typer.Option(help="Where run folders lie; finished runs there are reused.", **PATH_OPTION)
]
Out = Annotated[Path, typer.Option("--out", help="Where figures and their data are written.", **PATH_OPTION)]
Seeds = Annotated[
    int, typer.Option(help="How many seeds, counted from 0; figures then show median and spread.")
]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads of each run (default: cores / jobs; on Ray 1).")
]


def figure(
    figure_id: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="Its number in the plateau paper, or STUDY/ID of another study; `mechplateau figures` lists them.",
        ),
    ],
    scale: ScaleOption = "paper",
    seeds: Seeds = 1,
    runs_dir: RunsDir = Path("runs"),
    out: Out = Path("figures"),
    jobs: Jobs = None,
    threads: Threads = None,
    device: Device = "cpu",
    executor: ExecutorName = LOCAL,
    address: Address = None,
    gpus_per_run: GpusPerRun = None,
    collect: Collect = False,
    retries: Retries = None,
) -> None:
    """Train what a figure of a study needs, draw it, and say which of its claims hold."""
    name, slash, own = figure_id.rpartition("/")
    study = _study(name if slash else DEFAULT_STUDY)
    chosen = study.figure(own)
    place = Place(executor, address, gpus_per_run, collect, retries, device)
    request = _request(study, [chosen], scale, seeds, runs_dir, out, jobs, threads, place)
    _make(study, [chosen], request)


def figures(
    study: StudyName = DEFAULT_STUDY,
    scale: ScaleOption = "paper",
    seeds: Seeds = 1,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """List a study's figures: what they show, what they cost, and which of their runs are trained."""
    import pandas as pd
    from rich.console import Console

    from mechplateau.cli.tables import print_table
    from mechplateau.studies import study_named, study_names
    from mechplateau.studies.making import cost, state

    chosen, several = _study(study), _seeds(seeds)
    _scale(chosen, chosen.figures.values(), scale)
    if runs_dir.exists():
        _folder(runs_dir)
    lines: list[tuple[str, ...]] = []
    for one in chosen.figures.values():
        finished, needed = state(chosen, one, scale, several, runs_dir)
        lines.append((one.id, one.title, f"{cost(chosen, one, scale, several):,}", f"{finished} of {needed}"))
    console = Console()
    table = pd.DataFrame(lines, columns=["figure", "what", "steps at most", "runs finished"])
    print_table(table, console, wraps=("what",))
    others = [
        f"{id}: {'; '.join(filter(None, [other.what, ', '.join(other.commands)]))}"
        for id, other in chosen.elsewhere.items()
    ]
    studies = [study_named(name) for name in study_names() if name != chosen.name]
    others += [f"Another study: {other.title}; mechplateau figures {other.name}" for other in studies]
    for line in others:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def reproduce(
    study: StudyName = DEFAULT_STUDY,
    scale: ScaleOption = "paper",
    seeds: Seeds = 1,
    runs_dir: RunsDir = Path("runs"),
    out: Out = Path("figures"),
    jobs: Jobs = None,
    threads: Threads = None,
    device: Device = "cpu",
    executor: ExecutorName = LOCAL,
    address: Address = None,
    gpus_per_run: GpusPerRun = None,
    collect: Collect = False,
    retries: Retries = None,
) -> None:
    """Make every figure of a study. Rerun the same command to resume."""
    chosen = _study(study)
    every = list(chosen.figures.values())
    place = Place(executor, address, gpus_per_run, collect, retries, device)
    request = _request(chosen, every, scale, seeds, runs_dir, out, jobs, threads, place)
    _make(chosen, every, request)


def claims(
    study: StudyName = DEFAULT_STUDY,
    scale: ScaleOption = "paper",
    runs_dir: Annotated[
        Path | None,
        typer.Option(
            help="Check the finished runs of this folder instead of the results on record.", **PATH_OPTION
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a page of Markdown, as docs/claims.md.")
    ] = False,
    written: Annotated[bool, typer.Option("--csv", help="Print the claims without checking them.")] = False,
) -> None:
    """Check every claim of a study on the results that are on record, or on your own runs."""
    from mechplateau.runs import unreadable_runs
    from mechplateau.studies.claims import check_all, claims_table
    from mechplateau.studies.claims_told import claims_page
    from mechplateau.studies.results import found_in, on_record, summaries_of

    chosen = _study(study)
    _scale(chosen, chosen.figures.values(), scale)
    if written:
        print(claims_table(chosen.claims).to_csv(index=False), end="")
        return
    if runs_dir is not None:
        for name, reason in unreadable_runs(_folder(runs_dir)).items():
            print(f"left out: {name}: {reason}", file=sys.stderr)
    table = on_record(chosen) if runs_dir is None else found_in(chosen, runs_dir, scale)
    outcomes = check_all(chosen.claims, summaries_of(table, scale), scale)
    if markdown:
        print(claims_page(chosen, outcomes, scale))
    else:
        _print_claims(chosen, outcomes, scale)


@dataclass(frozen=True)
class _Request:
    """How to make figures; everything is checked."""

    scale: str
    seeds: range
    runs_dir: Path
    out: Path
    jobs: int | None
    threads: int
    place: Place


def _request(
    study: Study,
    figures: Sequence[Figure],
    scale: str,
    seeds: int,
    runs_dir: Path,
    out: Path,
    jobs: int | None,
    threads: int | None,
    place: Place,
) -> _Request:
    """Check everything before training, so that no figure fails after hours of it."""
    from mechplateau.training.loop import check_threads

    _scale(study, figures, scale)
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs: expected at least 1, got {jobs}")
    check_threads(threads)
    several = _seeds(seeds)
    if not place.on_ray:  # there it is the nodes that must have it
        device_named(place.device, TRAINABLE)
    for option, folder in (("--runs-dir", runs_dir), ("--out", out)):
        _make_folder(option, folder)
    return _Request(scale, several, runs_dir, out, jobs, place.threads(threads, jobs), place)


def _make(study: Study, figures: Sequence[Figure], asked: _Request) -> None:
    _say_where_it_belongs(study, figures, asked)
    with asked.place.joined() as executor:
        outcomes = _made(study, figures, asked, executor)
    _print_claims(study, outcomes, asked.scale)
    if asked.scale != "paper":
        _print_reduced(study, figures, asked.scale)


def _say_where_it_belongs(study: Study, figures: Sequence[Figure], asked: _Request) -> None:
    """That a size is made for a GPU, where it is trained on a CPU."""
    from mechplateau.config import RunConfig
    from mechplateau.studies.making import state
    from mechplateau.training.arithmetic import made_for_a_gpu, tflop_of_a_step

    names = dict.fromkeys(name for figure in figures for name in figure.recipes)
    configs = [RunConfig.parse(study.recipes[name].data(0, asked.scale)) for name in names]
    large = [config for config in configs if made_for_a_gpu(config)]
    trained = [state(study, figure, asked.scale, asked.seeds, asked.runs_dir) for figure in figures]
    if asked.place.device == "cpu" and large and any(done < needed for done, needed in trained):
        tflop = max(tflop_of_a_step(config) or 0.0 for config in large)
        print(
            f"{study.name} at the scale {asked.scale}: {tflop:.3g} TFLOP a step, which is made for a GPU "
            "(--device cuda). It can be stopped, and the same command resumes.",
            file=sys.stderr,
        )


def _made(
    study: Study, figures: Sequence[Figure], asked: _Request, executor: Executor | None
) -> list[Outcome]:
    from mechplateau.studies.making import all_recipes, make_figure
    from mechplateau.studies.training import ensure

    outcomes: list[Outcome] = []
    if len(figures) > 1:
        # All at once, so that jobs are never idle between figures.
        ensure(
            study.recipes,
            all_recipes(study),
            asked.seeds,
            asked.scale,
            runs_dir=asked.runs_dir,
            jobs=asked.jobs,
            threads=asked.threads,
            device=asked.place.device,
            executor=executor,
            progress=bars.told,
        )
    for one in figures:
        made = make_figure(
            study,
            one,
            scale=asked.scale,
            seeds=asked.seeds,
            runs_dir=asked.runs_dir,
            out=asked.out,
            jobs=asked.jobs,
            threads=asked.threads,
            device=asked.place.device,
            executor=executor,
            progress=bars.told,
        )
        outcomes += made.outcomes
        print(f"Figure {one.id}: {', '.join(str(path) for path in made.files)}")
    return outcomes


def _print_reduced(study: Study, figures: Sequence[Figure], scale: str) -> None:
    """Settings that a scale changes in these figures' runs, one per line, most frequent values first."""
    from collections import Counter, defaultdict

    from mechplateau.studies.making import reduced

    changes: dict[str, Counter[str]] = defaultdict(Counter)
    for settings in reduced(study, figures, scale).values():
        for setting, (paper, here) in settings.items():
            changes[setting][f"{paper} → {here}"] += 1
    print(f"Reduced at the {scale} scale (each run's own values are in the figure's JSON):")
    for setting, values in changes.items():
        print(f"  {setting}: {', '.join(value for value, _ in values.most_common())}")


def _print_claims(study: Study, outcomes: Sequence[Outcome], scale: str) -> None:
    """Each claim in a few lines, which fit into 80 columns; then how many hold."""
    from rich.console import Console
    from rich.text import Text

    from mechplateau.studies.claims_told import counts, lines_told, verdict_told

    colors = {"holds": "green", "fails": "red", "undefined": "yellow", "not yet run": "dim"}
    console = Console()
    for outcome in outcomes:
        first, *others = lines_told(study, outcome, scale, min(console.width, WIDEST))
        color = colors[outcome.verdict.removesuffix(" so far")]
        line = Text(first)
        line.stylize(color, len(first) - len(verdict_told(outcome)))
        console.print(line, soft_wrap=True)
        for other in others:
            console.print(Text(other, style="dim"), soft_wrap=True)
    console.print(counts(outcomes), highlight=False, soft_wrap=True)


def _study(name: str) -> Study:
    from mechplateau.studies import study_named

    return study_named(name)


def _scale(study: Study, figures: Iterable[Figure], name: str) -> None:
    """Check that all runs of these figures have this scale."""
    from mechplateau.studies.making import compared_to
    from mechplateau.studies.recipes import checked_scale

    recipes = dict.fromkeys(
        recipe for figure in figures for recipe in (*figure.recipes, *compared_to(study, figure))
    )
    try:
        checked_scale(name, [study.recipes[recipe] for recipe in recipes])
    except UserError as error:
        raise UserError(f"--{error}") from None


def _seeds(number: int) -> range:
    if not 1 <= number <= 1000:
        raise UserError(f"--seeds: expected 1 to 1000, got {number}")
    return range(number)


def _make_folder(option: str, path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK | os.X_OK)
        reason = "no permission"
    except OSError as error:
        writable, reason = False, error.strerror or str(error)
    if not writable:
        raise UserError(f"{option} {path}: expected a folder to write in ({reason}); give another one")


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise UserError(
            f"--runs-dir {path}: no such folder; give the one that `mechplateau figure` trained in"
        )
    return path
