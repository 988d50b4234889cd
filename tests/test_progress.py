"""What a `progress` argument may be, and what becomes of it."""

from __future__ import annotations

import inspect
from contextlib import closing
from types import SimpleNamespace

import IPython
import pytest
from tqdm import tqdm

from mechplateau import RunConfig, train
from mechplateau.cli import bars as of_the_command
from mechplateau.errors import UserError
from mechplateau.progress import bars, part_of


def counted(make):
    with closing(make(total=3, desc="work")) as bar:
        for _ in range(3):
            bar.update(1)
            bar.set_postfix_str("a word")


def test_tqdm_is_such_a_function(capsys):
    counted(bars(tqdm))
    shown = capsys.readouterr().err
    assert "work: 100%" in shown
    assert "3/3" in shown
    assert "a word" in shown


def test_short_work_and_none_show_nothing(capsys):
    counted(bars("stderr"))
    counted(bars(None))
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def notebook(monkeypatch):
    """What IPython says in the process of a notebook."""
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=None))
    monkeypatch.setattr("mechplateau.progress._SILENT_SECONDS", 0.0)


def test_a_notebook_has_no_box_of_errors(notebook, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # no ipywidgets
    for progress in ("stderr", "notebook"):
        counted(bars(progress))
        shown = capsys.readouterr()
        assert shown.err == ""
        assert "work: 100%" in shown.out
        assert shown.out.endswith("\r")  # and gone


def test_elsewhere_a_notebooks_bar_is_silent(capsys, monkeypatch):
    monkeypatch.setattr("mechplateau.progress._SILENT_SECONDS", 0.0)
    counted(bars("notebook"))
    assert capsys.readouterr() == ("", "")


def test_training_has_a_bar_in_a_notebook(heard, tmp_path):
    config = RunConfig.for_task(
        "copy",
        task={"n": 3},
        model={"d_model": 8},
        training={"steps": 3, "batch_size": 4},
        evaluation={"samples": 4},
    )
    train(config, runs_dir=tmp_path, progress=heard)
    assert heard.counts[-1] == (config.run_name, 3, 3)
    assert heard.open == 0
    count = len(heard.counts)
    train(config, runs_dir=tmp_path, progress=heard)  # finished
    assert len(heard.counts) == count
    assert inspect.signature(train).parameters["progress"].default == "notebook"


def test_parts_count_into_the_whole(heard):
    with closing(heard(total=6, desc="whole")) as bar:
        counted(part_of(bar))
        counted(part_of(bar))
        assert heard.open == 1
    assert heard.counts[-1] == ("whole", 6, 6)
    assert heard.open == 0


@pytest.mark.parametrize("odd", ["stdout", 3])
def test_anything_else_is_one_line(odd):
    with pytest.raises(
        UserError,
        match=f'progress: expected "stderr", "notebook", a function such as tqdm, or None, got {odd!r}',
    ):
        bars(odd)


def test_the_command_writes_lines_where_there_is_no_terminal(capsys, monkeypatch):
    counted(of_the_command.told)
    assert capsys.readouterr().err == "".join(f"work [{done}/3] a word\n" for done in (1, 2, 3))
    monkeypatch.setattr(of_the_command, "PLAIN_INTERVAL", 1e9)
    counted(of_the_command.shown)
    # The first, and the last.
    assert capsys.readouterr().err == "work [1/3] \nwork [3/3] a word\n"
