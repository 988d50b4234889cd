"""`list`, `show` of several runs, and what a sweep prints at its end: at any width, no name and no number is cut."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pandas as pd
import pytest
from rich.console import Console

from mechplateau.cli.tables import age, lines_of, print_table, shown_runs
from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.report.overview import COLUMNS, chosen_runs, overview, sorted_by
from mechplateau.runs import list_runs
from mechplateau.studies import study_named
from mechplateau.training import train

SIZE = {
    "model": {"d_model": 8},
    "training": {"steps": 3, "batch_size": 4},
    "evaluation": {"samples": 4},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs: two of window sums that differ in their rate, one of another task."""
    folder = tmp_path_factory.mktemp("listed")
    small = {"n": 4, "p": 7, "max_num": 6}
    for lr in (1e-3, 2e-3):
        train(
            RunConfig.for_task("mws", task=small, **{**SIZE, "training": {**SIZE["training"], "lr": lr}}),
            runs_dir=folder,
        )
    train(RunConfig.for_task("copy", task={"n": 3}, **SIZE), runs_dir=folder)
    return folder


def printed(table, width, wraps=()):
    out = io.StringIO()
    print_table(table, Console(file=out, width=width, force_terminal=False), wraps=wraps)
    return out.getvalue()


def test_one_row_a_run_with_what_differs_between_runs_of_its_task(runs):
    table = overview(list_runs(runs), now=1e12)
    assert tuple(table.columns) == COLUMNS
    by_task = table.groupby("task")["what differs"].apply(sorted).to_dict()
    assert by_task == {"copy": [""], "mws": ["training.lr=0.001", "training.lr=0.002"]}
    assert set(table["state"]) == {"finished"}
    assert table[["step", "steps"]].to_numpy().tolist() == [[3, 3]] * 3
    assert table["drop"].isna().all()
    assert (table["accuracy"] >= 0).all()
    assert (table["age (s)"] > 1e11).all()


def test_runs_are_chosen_by_task_and_by_settings(runs):
    found = list_runs(runs)
    assert {run.task.name for run in chosen_runs(found, task="mws")} == {"mws"}
    (one,) = chosen_runs(found, where=["training.lr=2e-3", "task.k=2"])
    assert one.config.training.lr == 2e-3
    assert chosen_runs(found, where=["training.lr=5"]) == []
    with pytest.raises(UserError, match="--task: expected one of copy, mws, got 'chess'"):
        chosen_runs(found, task="chess")
    with pytest.raises(UserError, match=r"--where training\.rate"):
        chosen_runs(found, where=["training.rate=2e-3"])


def test_rows_are_sorted_by_a_column_and_undefined_comes_last():
    table = pd.DataFrame([[None] * len(COLUMNS)] * 3, columns=list(COLUMNS)).assign(
        run=["a", "b", "c"], drop=[200.0, float("nan"), 100.0]
    )
    assert list(sorted_by(table, None)["run"]) == ["a", "b", "c"]
    assert list(sorted_by(table, "drop")["run"]) == ["c", "a", "b"]
    assert list(sorted_by(table, "-drop")["run"]) == ["a", "c", "b"]
    with pytest.raises(
        UserError, match=r"--sort: expected one of run, task, what differs, .*, age, with a minus"
    ):
        sorted_by(table, "loss")


@pytest.mark.parametrize("width", [200, 80, 40, 20])
def test_nothing_is_cut_at_any_width(runs, width):
    table = shown_runs(overview(list_runs(runs)))
    text = printed(table, width, ["what differs"])
    for row in table.itertuples(index=False):
        for cell in row:
            assert cell in text
    assert "…" not in text


def test_a_wide_terminal_has_a_line_a_run_and_a_narrow_one_a_block():
    table = pd.DataFrame({"": ["drop"], "mws-0": ["123"], "empty": [""], "[bold]": ["[red]"]})
    assert printed(table, 80).split() == ["mws-0", "[bold]", "drop", "123", "[red]"]
    assert printed(table, 10).splitlines() == ["drop", "mws-0: 123", "[bold]: [red]"]


def test_numbers_end_at_one_place_and_what_alarms_is_red():
    table = pd.DataFrame({"step": ["7", "120"], "verdict": ["ok", "damaged"]})
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard")
    print_table(table, console, right=["step"], alarming={"damaged"})
    assert out.getvalue().splitlines()[1].startswith("   7  ok")
    assert "\x1b[31mdamaged" in out.getvalue()
    assert "\x1b[31mok" not in out.getvalue()


def test_names_and_values_stand_side_by_side_where_there_is_room():
    rows = [("Step of the drop", "155"), ("ρ", "0.84, 0.9")]
    assert lines_of(rows, 27) == ["Step of the drop  155", "ρ                 0.84, 0.9"]
    assert lines_of(rows, 26) == ["Step of the drop: 155", "ρ: 0.84, 0.9"]


@pytest.mark.parametrize("width", ["80", "40"])
@pytest.mark.parametrize("study", ["plateau", "stages"])
def test_no_figure_is_cut_at_a_narrow_width(run_cli, monkeypatch, width, study):
    monkeypatch.setenv("COLUMNS", width)
    code, out, _ = run_cli("figures", study)
    assert code == 0
    assert "…" not in out
    words = out.split()
    for id, figure in study_named(study).figures.items():
        assert id in words
        assert set(figure.title.split()) <= set(words)


@pytest.mark.parametrize(
    ("shell", "typed", "wanted"),
    [("bash", "mechplateau sho", "show"), ("zsh", "mechplateau list --wh", "--where")],
)
def test_shells_complete_commands_and_options(shell, typed, wanted):
    asked = {
        "_MECHPLATEAU_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": typed,
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    # Its own process: the program's name is that of the command.
    script = "import sys; sys.argv = ['mechplateau']; from mechplateau.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert wanted in done.stdout


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_ages_are_in_their_largest_unit(seconds, text):
    assert age(seconds) == text


@pytest.mark.parametrize("width", ["80", "40"])
def test_the_commands_at_a_narrow_width(run_cli, monkeypatch, runs, width):
    monkeypatch.setenv("COLUMNS", width)
    names = [run.name for run in list_runs(runs)]
    code, out, _ = run_cli("list", "--runs-dir", str(runs), "--sort", "task")
    assert code == 0
    assert all(name in out for name in names)
    code, out, _ = run_cli("list", "--runs-dir", str(runs), "--where", "training.lr=2e-3", "--csv")
    assert out.splitlines()[0] == ",".join(COLUMNS)
    assert len(out.splitlines()) == 2
    code, out, _ = run_cli("list", "--runs-dir", str(runs), "--where", "seed=7")
    assert out.startswith(f"No such run in {runs};")
    code, out, _ = run_cli("show", *names[1:], "--runs-dir", str(runs))
    assert code == 0
    assert all(name in out for name in names[1:])
    assert "training.lr" in out
    assert "…" not in out
    code, out, _ = run_cli("show", names[1], "--runs-dir", str(runs))
    assert code == 0
    assert "…" not in out
    assert re.search(r"Solved \(accuracy ≥ 0\.95\):? +no, up to step 3", out)
    code, _, err = run_cli("list", "--runs-dir", str(runs), "--sort", "loss")
    assert (code, len(err.splitlines())) == (2, 1)


def test_a_sweep_ends_with_a_table_and_a_page_that_compares(run_cli, monkeypatch, runs):
    monkeypatch.setenv("COLUMNS", "200")
    settings = ["task.n=4", "task.p=7", "task.max_num=6", "model.d_model=8", "training.steps=3"]
    settings += ["training.batch_size=4", "evaluation.samples=4", "training.lr=1e-3,2e-3"]
    options = [part for setting in settings for part in ("--set", setting)]
    code, out, err = run_cli("sweep", "mws", *options, "--runs-dir", str(runs))  # both are finished
    assert (code, err) == (0, "")
    assert "2 skipped" in out
    assert "training.lr=0.002" in out
    (page,) = runs.glob("comparison-*.html")
    assert f"Comparison: {page}" in out
    assert "2 runs compared" in page.read_text(encoding="utf-8")
