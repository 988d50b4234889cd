"""`mechplateau figure`, `figures`, `reproduce` and `claims`: the paper, figure by figure."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechplateau.devices import TRAINABLE, device_named
from mechplateau.errors import UserError
from mechplateau.paths import PATH_OPTION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mechplateau.studies.plateau.claims import Outcome
    from mechplateau.studies.plateau.recipes import Scale
    from mechplateau.training.sweep import SweepResult

ScaleOption = Annotated[
    str, typer.Option("--scale", help="paper, or small: shorter sequences, narrower models, minutes.")
]
RunsDir = Annotated[
    Path, typer.Option(help="Where run folders lie; finished runs there are reused.", **PATH_OPTION)
]
Out = Annotated[Path, typer.Option("--out", help="Where figures and their data are written.", **PATH_OPTION)]
Seeds = Annotated[
    int, typer.Option(help="How many seeds, counted from 0; figures then show median and spread.")
]
Jobs = Annotated[int, typer.Option(help="Runs at a time.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of each run (default: cores / jobs).")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]


def figure(
    number: Annotated[int, typer.Argument(help="Its number in the paper; `mechplateau figures` lists them.")],
    scale: ScaleOption = "paper",
    seeds: Seeds = 1,
    runs_dir: RunsDir = Path("runs"),
    out: Out = Path("figures"),
    jobs: Jobs = 1,
    threads: Threads = None,
    device: Device = "cpu",
) -> None:
    """Train what a figure of the paper needs, draw it, and say which of its claims hold."""
    from mechplateau.studies.plateau.figures import figure_spec

    chosen = _scale(scale)
    spec = figure_spec(number)
    _make([spec.number], chosen, seeds, runs_dir, out, jobs, threads, device)


def figures(
    scale: ScaleOption = "paper",
    seeds: Seeds = 1,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """List the paper's figures: what they show, what they cost, and what of them is trained."""
    from rich.console import Console
    from rich.table import Table

    from mechplateau.studies.making import state
    from mechplateau.studies.plateau.figures import FIGURES, LANGUAGE_MODELS

    chosen, several = _scale(scale), _seeds(seeds)
    if runs_dir.exists():
        _folder(runs_dir)
    table = Table("figure", "what", "steps at most", "runs finished", box=None, padding=(0, 2, 0, 0))
    for spec in FIGURES.values():
        finished, needed = state(spec, chosen, several, runs_dir)
        cost = spec.cost(chosen, several)
        table.add_row(str(spec.number), spec.title, f"{cost:,}", f"{finished} of {needed}")
    console = Console()
    console.print(table, highlight=False)
    for number, commands in LANGUAGE_MODELS.items():
        line = f"{number}: language models; {', '.join(commands)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def reproduce(
    scale: ScaleOption = "paper",
    seeds: Seeds = 1,
    runs_dir: RunsDir = Path("runs"),
    out: Out = Path("figures"),
    jobs: Jobs = 1,
    threads: Threads = None,
    device: Device = "cpu",
) -> None:
    """Make every figure of the paper; an interrupted call goes on where it stopped."""
    from mechplateau.studies.plateau.figures import FIGURES

    _make(list(FIGURES), _scale(scale), seeds, runs_dir, out, jobs, threads, device)


def claims(
    scale: ScaleOption = "paper",
    runs_dir: Annotated[
        Path | None,
        typer.Option(
            help="Check the finished runs of this folder instead of the results on record.", **PATH_OPTION
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Check every claim of the paper on the results that are on record, or on your own runs."""
    from mechplateau.runs import unreadable_runs
    from mechplateau.studies.plateau.claims import check_all
    from mechplateau.studies.results import found_in, on_record, summaries_of

    chosen = _scale(scale)
    if runs_dir is not None:
        for name, reason in unreadable_runs(_folder(runs_dir)).items():
            print(f"left out: {name}: {reason}", file=sys.stderr)
    table = on_record() if runs_dir is None else found_in(runs_dir, chosen)
    outcomes = check_all(summaries_of(table, chosen), chosen)
    if markdown:
        print(markdown_table(outcomes, chosen))
    else:
        _print_claims(outcomes, chosen)


def _make(
    numbers: list[int],
    scale: Scale,
    seeds: int,
    runs_dir: Path,
    out: Path,
    jobs: int,
    threads: int | None,
    device: str,
) -> None:
    from mechplateau.studies.making import all_recipes, make_figure
    from mechplateau.studies.plateau.figures import FIGURES
    from mechplateau.studies.training import ensure
    from mechplateau.training.loop import MOST_THREADS
    from mechplateau.training.sweep import cores

    if jobs < 1:
        raise UserError(f"--jobs: expected at least 1, got {jobs}")
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UserError(f"--threads: expected 1 to {MOST_THREADS}, got {threads}")
    several = _seeds(seeds)
    device_named(device, TRAINABLE)
    # Before anything is trained, so that hours of it are not followed by a figure that cannot be written.
    for option, folder in (("--runs-dir", runs_dir), ("--out", out)):
        _make_folder(option, folder)
    each = threads if threads is not None else max(1, cores() // jobs)
    outcomes: list[Outcome] = []
    if len(numbers) > 1:
        # All at once, so that jobs are never idle between figures.
        ensure(
            all_recipes(),
            several,
            scale,
            runs_dir=runs_dir,
            jobs=jobs,
            threads=each,
            device=device,
            announce=_announce,
        )
    for number in numbers:
        made = make_figure(
            FIGURES[number],
            scale=scale,
            seeds=several,
            runs_dir=runs_dir,
            out=out,
            jobs=jobs,
            threads=each,
            device=device,
            announce=_announce,
            on_probe=_probed,
        )
        outcomes += made.outcomes
        print(f"Figure {number}: {', '.join(str(path) for path in made.files)}")
    _print_claims(outcomes, scale)
    if scale == "small":
        _print_reduced(numbers)


def _print_reduced(numbers: Sequence[int]) -> None:
    """What the small scale changed in these figures' runs: a line a setting, most frequent values first."""
    from collections import Counter, defaultdict

    from mechplateau.studies.making import reduced
    from mechplateau.studies.plateau.figures import FIGURES

    changes: dict[str, Counter[str]] = defaultdict(Counter)
    for settings in reduced(FIGURES[number] for number in numbers).values():
        for setting, (paper, small) in settings.items():
            changes[setting][f"{paper} → {small}"] += 1
    print("Reduced at the small scale (each run's own values are in the figure's JSON):")
    for setting, values in changes.items():
        print(f"  {setting}: {', '.join(value for value, _ in values.most_common())}")


def _announce(number: int) -> Callable[[SweepResult], None]:
    """A line for every run as it ends, on standard error."""
    done = 0

    def on_result(result: SweepResult) -> None:
        nonlocal done
        done += 1
        if result.outcome != "skipped":
            reason = f": {result.message}" if result.message else ""
            line = f"[{done}/{number}] {result.config.run_name} {result.outcome}{reason}"
            print(line, file=sys.stderr, flush=True)

    return on_result


def _probed(step: int) -> None:
    """A line for every checkpoint probed, each of which may take a minute, on standard error."""
    print(f"probe: step {step} done", file=sys.stderr, flush=True)


def _print_claims(outcomes: Sequence[Outcome], scale: Scale) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colors = {"holds": "green", "fails": "red", "undefined": "yellow", "not yet run": "dim"}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("figure", "claim", "paper", "expected", "measured", "verdict"):
        table.add_column(name, overflow="fold")
    for outcome in outcomes:
        claim = outcome.claim
        cells = (str(claim.figure), claim.text, claim.paper, _range(outcome, scale), _found(outcome, scale))
        table.add_row(*(Text(cell) for cell in cells), Text(outcome.verdict, style=colors[outcome.verdict]))
    console = Console()
    console.print(table)
    counts = {name: sum(outcome.verdict == name for outcome in outcomes) for name in colors}
    console.print(", ".join(f"{count} {name}" for name, count in counts.items() if count), highlight=False)


def markdown_table(outcomes: Sequence[Outcome], scale: Scale) -> str:
    """The claims that have run as a Markdown table, and the figures of those that have not."""
    lines = [
        "| figure | claim | paper | expected | measured (seeds) | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        if outcome.verdict == "not yet run":
            continue
        claim = outcome.claim
        cells = (
            str(claim.figure),
            claim.text,
            claim.paper,
            _range(outcome, scale),
            _found(outcome, scale),
            outcome.verdict,
        )
        lines.append("| " + " | ".join(cells) + " |")
    missing: dict[int, set[str]] = {}
    for outcome in outcomes:
        if outcome.verdict == "not yet run":
            missing.setdefault(outcome.claim.figure, set()).add(outcome.claim.recipe)
    if missing:
        named = (f"{figure} ({', '.join(sorted(recipes))})" for figure, recipes in sorted(missing.items()))
        lines += ["", f"Not yet run: figures {'; '.join(named)}."]
    return "\n".join(lines)


def _range(outcome: Outcome, scale: Scale) -> str:
    low, high = outcome.claim.range(scale)
    name = outcome.claim.measured
    if low is None and high is None:
        return f"{name}: any"
    if high is None:
        return f"{name} ≥ {low:g}"
    return f"{name} ≤ {high:g}" if low is None else f"{name} in {low:g} – {high:g}"


def _found(outcome: Outcome, scale: Scale) -> str:
    """Median, spread and number of seeds; of how many, where it is undefined in some; and which are not solved."""
    unsolved = f"; {outcome.unsolved} of {outcome.runs} not solved" if outcome.unsolved else ""
    if outcome.value is None:
        return f"–{unsolved}"
    value, defined = _number(outcome.value, outcome.claim.range(scale)), len(outcome.values)
    count = f"({defined})" if defined == outcome.runs else f"({defined} of {outcome.runs})"
    if defined == 1:
        return f"{value} {count}{unsolved}"
    return f"{value}, {_number(min(outcome.values))} – {_number(max(outcome.values))} {count}{unsolved}"


def _number(value: float, bounds: Sequence[float | None] = ()) -> str:
    """Three significant digits; more where the value would else look as if it were on a bound it misses."""
    if float(value).is_integer() and abs(value) >= 2:
        return str(int(value))
    digits = 3
    while digits < 6 and value not in bounds and float(f"{value:.{digits}g}") in bounds:
        digits += 1
    return f"{value:.{digits}g}"


def _scale(name: str) -> Scale:
    from mechplateau.studies.plateau.recipes import checked_scale

    try:
        return checked_scale(name)
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
