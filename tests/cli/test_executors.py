"""Where runs are done: what may be asked together, and what is said where Ray is not there."""

from __future__ import annotations

import sys

import pytest

from mechplateau import cli
from mechplateau.cli.executors import Place
from mechplateau.errors import UserError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"executor": "slurm"}, "--executor: expected local or ray, got 'slurm'"),
        ({"collect": True}, "--collect: is for a Ray cluster; add --executor ray"),
        ({"retries": 0}, "--retries: is for a Ray cluster; add --executor ray"),
        (
            {"executor": "ray", "device": "cuda:1"},
            "--device: expected cpu or cuda with --executor ray, which chooses the GPU; got 'cuda:1'",
        ),
        (
            {"executor": "ray", "device": "cuda", "gpus_per_run": 0.0},
            "--gpus-per-run: expected more than 0 with --device cuda, got 0",
        ),
    ],
)
def test_what_does_not_go_together(given, message):
    with pytest.raises(UserError) as error:
        Place(**given)
    assert str(error.value) == message


def test_threads_of_each_run(monkeypatch):
    monkeypatch.setattr("mechplateau.training.executor.cores", lambda: 8)
    assert Place().threads(None, None) == 8
    assert Place().threads(None, 3) == 2
    assert Place("ray").threads(None, 3) == 1
    assert Place("ray").threads(5, None) == 5


def test_without_ray_a_line_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(
        sys,
        "argv",
        ["mechplateau", "sweep", "mws", "--executor", "ray", "--runs-dir", str(tmp_path / "runs")],
    )
    with pytest.raises(SystemExit) as ending:
        cli.main()
    assert ending.value.code == 2
    assert capsys.readouterr().err == (
        "mechplateau: --executor ray: Ray is not installed; pip install 'mechplateau[ray]' on every node of the "
        "cluster\n"
    )
    assert list(tmp_path.iterdir()) == []
