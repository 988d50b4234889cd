"""Runs for the record: trained in pieces they are, to the bit, what they are in one."""

from __future__ import annotations

import signal
import sys
from functools import partial

import next_record
import pandas as pd
import pytest
import torch

from mechplateau.runs import load_run
from mechplateau.studies import Recipe, Study
from mechplateau.studies.results import KEY, read_results
from mechplateau.training import train

K3 = Recipe(
    "k3",
    "mws",
    "k = 3",
    {
        "task": {"n": 4, "k": 3, "p": 7, "max_num": 6},
        "model": {"d_model": 8},
        "training": {"steps": 12, "batch_size": 8, "stop_past_solved": 0.2},
        "evaluation": {"every": 2, "samples": 4},
        "checkpoints": {"every": 10**6},
    },
)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A study of one run, none of it on record."""
    study = Study(
        name="toy",
        title="A toy",
        recipes=[K3],
        figures=(),
        claims=(),
        numbers=lambda run, scale: {"steps": run.reached, "end": float(run.metrics["loss"].iloc[-1])},
    )
    results = tmp_path / "toy" / "results"
    results.mkdir(parents=True)
    (results / "runs.csv").write_text(",".join(KEY) + "\n")
    monkeypatch.setattr(next_record, "STUDIES", tmp_path)
    monkeypatch.setattr(next_record, "study_named", lambda name: study)
    before = signal.getsignal(signal.SIGALRM)
    yield results / "runs.csv"
    signal.signal(signal.SIGALRM, before)


def test_a_run_in_pieces_of_minutes_is_the_run_in_one(toy, tmp_path, monkeypatch, capsys):
    alarms, asked = [5, 8], []
    monkeypatch.setattr(signal, "alarm", asked.append)

    class Clock:
        def on_step(self, step, row):
            if step in alarms:
                alarms.remove(step)
                signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(next_record, "train", partial(train, listeners=[Clock()]))
    command = ["next_record.py", "--run", "k3:0", "--minutes", "20", "--runs-dir", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", command)
    for _ in range(2):
        with pytest.raises(SystemExit, match="saved; rerun the same command to resume"):
            next_record.main()
        # Nothing of a run that is not finished is on record.
        assert read_results(toy).empty
    next_record.main()
    assert alarms == []
    # Once trained, it is put on record, however late it is.
    assert asked == [1200, 1200, 1200, 0]
    assert "k3:0 is on record" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    run = load_run(folder)
    assert len(run.sessions) == 3
    whole = train(run.config, runs_dir=tmp_path / "whole", threads=1)
    pd.testing.assert_frame_equal(run.metrics, whole.metrics, check_exact=True)
    for step in whole.steps:
        own, other = run.weights(step), whole.weights(step)
        assert all(torch.equal(own[name], other[name]) for name in other)
    (line,) = read_results(toy).to_dict("records")
    assert (line["recipe"], line["seed"], line["steps"]) == ("k3", 0, 12)
