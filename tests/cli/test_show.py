"""`show`: the rows are what the run's table has."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechplateau import load_run
from mechplateau.cli.console import print_comparison, print_run

FOLDER = Path(__file__).parents[1] / "data" / "copy-62e708e1119f"
OF_TOKENS = ("COS", "ρ", "APM", "accuracy")


@pytest.fixture
def plain(monkeypatch):
    """The same run, of a task that has neither tokens nor attention."""
    run = load_run(FOLDER)
    run.__dict__["metrics"] = run.metrics[["step", "loss"]]
    return run


def test_a_run_of_tokens_shows_all_of_it(capsys):
    print_run(load_run(FOLDER))
    shown = capsys.readouterr().out
    for name in ("Step of the drop", *OF_TOKENS, "Final loss"):
        assert name in shown


@pytest.mark.parametrize("show", [print_run, lambda run: print_comparison([run, run])])
def test_what_a_task_does_not_have_is_no_row(plain, capsys, show):
    show(plain)
    shown = capsys.readouterr().out
    assert "Final loss" in shown
    table = shown.partition("Only 3 finite")[0]
    for name in OF_TOKENS:
        assert name not in table, name
