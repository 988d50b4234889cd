"""What a `progress` argument may be, and what becomes of it."""

from __future__ import annotations

from contextlib import closing

import pytest
from tqdm import tqdm

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
        UserError, match=f'progress: expected "stderr", a function such as tqdm, or None, got {odd!r}'
    ):
        bars(odd)


def test_the_command_writes_lines_where_there_is_no_terminal(capsys, monkeypatch):
    counted(of_the_command.told)
    assert capsys.readouterr().err == "".join(f"work [{done}/3] a word\n" for done in (1, 2, 3))
    monkeypatch.setattr(of_the_command, "PLAIN_INTERVAL", 1e9)
    counted(of_the_command.shown)
    # The first, and the last.
    assert capsys.readouterr().err == "work [1/3] \nwork [3/3] a word\n"
