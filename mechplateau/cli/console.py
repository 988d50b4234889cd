"""What the command line shows on a terminal: progress, tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import pandas as pd
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from mechplateau.cli.tables import lines_of, print_table, shown_runs
from mechplateau.config import RunConfig
from mechplateau.errors import RunError, UserError, counted
from mechplateau.report import run_view, save_report
from mechplateau.report.overview import overview, state_of
from mechplateau.runs import Run, load_run
from mechplateau.signs import COLLAPSE, NO_PLATEAU, Signs, collapse_columns
from mechplateau.training.loop import Row
from mechplateau.training.sweep import SweepResult
from mechplateau.views.configs import differing_settings
from mechplateau.views.summary import SOLVED_LABEL, Peak, comparison_rows, key_numbers, solved_text, verdict

PLAIN_INTERVAL = 30.0
"""Seconds between lines where the output is a file or a pipe."""
CHOSEN_AGAIN = 1.0
"""Seconds after which a live display chooses again which columns to show for the run."""
MOST_COMPARED = 16
"""Runs on one page of comparison: with more, colors can no longer be distinguished."""


@contextmanager
def training_progress(config: RunConfig) -> Iterator[_Progress]:
    """A run's live display: bar, time left and the last measured numbers. In a file, plain lines from time to time."""
    console = Console(stderr=True)
    display = _Progress(config, console)
    if not console.is_terminal:
        yield display
        return
    with Live(display.draw(), console=console, refresh_per_second=4) as live:
        display.live = live
        yield display


class _Progress:
    """Listens to a run and draws it."""

    def __init__(self, config: RunConfig, console: Console):
        self.steps = min(config.training.steps, config.training.stop_at or config.training.steps)
        self.plateau_column = config.task.plateau_column
        self.console = console
        self.live: Live | None = None
        self.row: Row | None = None
        self.rows: list[Row] = []
        self.chosen: dict[str, str] = {}
        self.chosen_at = 0.0
        self.last_line = time.monotonic()
        self.bar = Progress(
            TextColumn(escape(config.run_name)),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task("train", total=self.steps)

    def on_step(self, step: int, row: Row | None) -> None:
        self.bar.update(self.task, completed=step)
        if row is not None:
            self.row = row
            self.rows.append(
                {name: row[name] for name in row if name.startswith(("step", "accuracy", "apm_", COLLAPSE))}
            )
        if self.live is not None:
            self.live.update(self.draw())
        elif step == self.steps or time.monotonic() - self.last_line > PLAIN_INTERVAL:
            self.last_line = time.monotonic()
            self.console.print(f"step {step}/{self.steps}  {self._numbers()}", markup=False, highlight=False)

    def draw(self) -> Group:
        return Group(self.bar, escape(self._numbers()))

    def _numbers(self) -> str:
        if self.row is None:
            return ""
        wanted = {
            "loss": "loss",
            self.plateau_column: self.plateau_column,
            "accuracy": "accuracy",
            "repetition": "ρ",
        }
        shown = [(name, label) for name, label in wanted.items() if name in self.row]
        if self.live is None or time.monotonic() - self.chosen_at > CHOSEN_AGAIN:
            self.chosen_at, self.chosen = time.monotonic(), stand_for(self.rows)
        shown += self.chosen.items()
        return "  ".join(f"{label} {_number(self.row.get(name))}" for name, label in shown)


def stand_for(rows: Sequence[Row]) -> dict[str, str]:
    """Of attention progress and COS, the columns that represent a run so far: column → its label here."""
    signs = Signs(pd.DataFrame(rows), plateau=NO_PLATEAU)
    names = {name: "APM" for name in [signs.progress_column] if name is not None}
    return names | ({signs.collapse_column: "COS"} if collapse_columns(signs.metrics) else {})


def print_run(run: Run) -> None:
    """The short table of a run."""
    console = Console()
    console.print(f"[bold]{escape(run.name)}[/bold]  ({state_of(run)})", highlight=False)
    if run.failure is not None:
        console.print(f"Ended by an error: {escape(run.failure)}", highlight=False, soft_wrap=True)
    try:
        view = run_view(run, pictures=False)
    except RunError as error:
        console.print(escape(str(error)), highlight=False)
        return
    numbers = key_numbers(view)
    accuracy = "accuracy" in view.metrics
    rows = [("Step of the drop", _number(numbers.drop))]
    if accuracy:
        rows.append((SOLVED_LABEL, solved_text(numbers)))
    if numbers.cos_label is not None:
        rows.append((f"Peak COS ({numbers.cos_label})", _peak(numbers.peak_cos)))
    if "repetition" in view.metrics:
        rows.append(("Peak ρ (repetition)", _peak(numbers.peak_repetition)))
    if numbers.apm_label is not None:
        apm = ", ".join(_number(value) for value in (numbers.apm_start, numbers.apm_drop, numbers.apm_end))
        rows.append((f"APM ({numbers.apm_label}) at start, at the drop, at the end", apm))
    if accuracy:
        rows.append(("Final accuracy", _number(numbers.final_accuracy)))
    rows.append(("Final loss", _number(numbers.final_loss)))
    for line in lines_of(rows, console.width):
        console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(escape(verdict(view)), highlight=False, soft_wrap=True)
    console.print(
        f"Checkpoints: {', '.join(str(step) for step in run.steps)}", highlight=False, soft_wrap=True
    )
    if run.missing:
        lost = ", ".join(str(step) for step in run.missing)
        console.print(f"Missing checkpoints: {lost}", highlight=False, soft_wrap=True)
    console.print(f"Run: {escape(str(run.path))}", highlight=False, soft_wrap=True)


def print_comparison(runs: Sequence[Run]) -> None:
    """The short tables of several runs side by side, and the settings that differ."""
    console = Console()
    views = [run_view(run, pictures=False) for run in runs]
    names = [run.name for run in runs]
    rows = [
        ("State", [state_of(run) for run in runs]),
        *comparison_rows([key_numbers(view) for view in views]),
    ]
    rows += differing_settings([view.config_yaml for view in views])
    table = pd.DataFrame(
        [[name, *values] for name, values in rows], columns=["", *map(str, range(len(runs)))]
    )
    table.columns = pd.Index(["", *names])
    print_table(table, console, wraps=names)


def print_runs(table: pd.DataFrame, unreadable: Mapping[str, str], nothing: str) -> None:
    """One line per run, then the folders that could not be opened, with reasons; `nothing` if there are neither."""
    console = Console()
    if table.empty and not unreadable:
        console.print(escape(nothing), highlight=False, soft_wrap=True)
        return
    if not table.empty:
        print_table(shown_runs(table), console, wraps=("what differs",))
    for name, reason in unreadable.items():
        console.print(escape(f"{name}: {reason}"), highlight=False, soft_wrap=True)


@contextmanager
def sweep_progress(configs: Sequence[RunConfig]) -> Iterator[Callable[[SweepResult], None]]:
    """A line for every run of a sweep as it ends, and a count at the end."""
    console = Console()
    counts = {"finished": 0, "skipped": 0, "failed": 0}
    console.print(counted(len(configs), "run"), highlight=False)

    def on_result(result: SweepResult) -> None:
        counts[result.outcome] += 1
        done = sum(counts.values())
        reason = f": {result.message}" if result.message else ""
        tries = f" at try {result.tries}" if result.tries > 1 else ""
        console.print(
            escape(f"[{done}/{len(configs)}] {result.config.run_name} {result.outcome}{tries}{reason}"),
            highlight=False,
            soft_wrap=True,
        )

    yield on_result
    console.print(", ".join(f"{number} {name}" for name, number in counts.items()), highlight=False)


def print_results(runs: Sequence[Run]) -> None:
    """What came out of a sweep: a row a run, with the settings that differ."""
    print_table(shown_runs(overview(runs)), Console(), wraps=("what differs",))


def print_sweep(paths: Sequence[Path], failed: Collection[Path], runs_dir: Path) -> None:
    """The table of a sweep's runs, and a page that compares those that did not fail."""
    shown = []
    for path in paths:
        with suppress(UserError):  # a failed run may have left nothing that can be opened
            shown.append(load_run(path))
    if shown:
        print_results(shown)
    runs = [run for run in shown if run.path not in failed]
    if not 2 <= len(runs) <= MOST_COMPARED:
        return
    name = sha256(" ".join(sorted(run.name for run in runs)).encode()).hexdigest()[:8]
    print(f"Comparison: {save_report(runs, runs_dir / f'comparison-{name}.html')}")


def _number(value: float | int | None) -> str:
    if value is None:
        return "undefined"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _peak(peak: Peak | None) -> str:
    return "undefined" if peak is None else f"{peak.value:.3f} at step {peak.step}"
