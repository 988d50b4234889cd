"""The record of the sessions that made a run."""

from __future__ import annotations

import json
import signal

import pytest

import mechplateau
from mechplateau.cli.console import print_run
from mechplateau.report import run_view
from mechplateau.report.gather import _unfinished
from mechplateau.report.overview import state_of
from mechplateau.runs import (
    RunWriter,
    load_run,
)
from mechplateau.runs.environment import ARITHMETIC
from mechplateau.training import RunInterrupted, train

from .tiny import CONFIG


def interrupted(tmp_path, step=4):
    """A run stopped at a step; its folder."""

    class Stop:
        def on_step(self, reached, row):
            if reached == step:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(RunInterrupted):
        train(CONFIG, runs_dir=tmp_path, listeners=[Stop()])
    return tmp_path / CONFIG.run_name


@pytest.mark.parametrize("record", ["[]", '{"sessions": 3}', '{"sessions": [5]}', "no json"])
def test_a_damaged_record_of_sessions_is_none(finished, record):
    (finished / "environment.json").write_text(record)
    assert load_run(finished).sessions == ()


@pytest.mark.parametrize("record", ['{"sessions": 3}', '{"sessions": [5]}'])
def test_a_run_goes_on_beside_a_damaged_record_of_sessions(tmp_path, record):
    path = interrupted(tmp_path)
    (path / "environment.json").write_text(record)
    run = train(CONFIG, runs_dir=tmp_path)
    assert run.status == "finished"
    assert len(run.sessions) == 1


def test_a_run_says_what_made_it_and_a_resume_with_another_arithmetic_says_so(tmp_path, caplog):
    path = interrupted(tmp_path)
    record = json.loads((path / "environment.json").read_text())
    assert record["sessions"][-1]["arithmetic"] == ARITHMETIC
    assert record["sessions"][-1]["packages"]["mechplateau"] == mechplateau.__version__
    # As it was recorded while there was but one.
    del record["sessions"][-1]["arithmetic"]
    (path / "environment.json").write_text(json.dumps(record))
    with RunWriter(CONFIG, tmp_path) as writer:
        reached = writer.resume_step
    run = train(CONFIG, runs_dir=tmp_path)
    assert run.status == "finished"
    said = [r.getMessage() for r in caplog.records if "arithmetic" in r.getMessage()]
    assert said == [
        f"{path}: made with arithmetic 1 up to step {reached}, resumed with {ARITHMETIC}: its numbers differ from an "
        "uninterrupted run's by rounding"
    ]
    assert [session.get("arithmetic") for session in run.sessions] == [None, ARITHMETIC]


def test_a_resume_with_the_same_arithmetic_says_nothing(tmp_path, caplog):
    interrupted(tmp_path)
    assert train(CONFIG, runs_dir=tmp_path).status == "finished"
    assert not [r for r in caplog.records if "arithmetic" in r.getMessage()]


def test_sessions_always_have_packages_and_a_status_is_a_known_one(finished):
    (finished / "environment.json").write_text('{"sessions": [{"packages": null, "threads": 1}]}')
    assert load_run(finished).sessions == ({"packages": {}, "threads": 1},)
    (finished / "state.json").write_text('{"status": ["finished"]}')
    (finished / "metrics.parquet").unlink()
    assert load_run(finished).status is None


def test_a_run_that_an_error_ended_says_so_until_it_is_resumed(tmp_path, finished_once):
    class Break:
        def on_step(self, reached, row):
            if reached == 3:
                raise KeyError("no such weight\nand more")

    with pytest.raises(KeyError):
        train(CONFIG, runs_dir=tmp_path, listeners=[Break()])
    run = load_run(tmp_path / CONFIG.run_name)
    assert (run.status, run.failure) == ("failed", r"KeyError: 'no such weight\nand more'")
    assert (run.reached, run.finished, run.at_work) == (3, False, False)
    assert state_of(run) == "failed"
    (notice,) = run_view(run, pictures=False).notices
    assert notice.startswith("Not finished, at step 3 of 6, ended by an error: KeyError")
    resumed = train(CONFIG, runs_dir=tmp_path)
    assert (resumed.status, resumed.failure) == ("finished", None)
    assert resumed.metrics.equals(load_run(finished_once).metrics)


def test_a_run_that_nobody_trains_is_not_said_to_be_running(tmp_path, capsys):
    with RunWriter(CONFIG, tmp_path) as writer:
        writer.begin({"threads": 1})
        run = load_run(writer.layout.root)
        assert (run.at_work, state_of(run)) == (True, "running")
        assert _unfinished(run) == ("Not finished, at step 0 of 6: running.",)
        print_run(run)
        assert "nothing was measured yet" in " ".join(capsys.readouterr().out.split())
    assert (run.status, run.at_work) == ("running", False)
    assert state_of(run) == "killed, or running elsewhere"
    assert _unfinished(run)[0].endswith("elsewhere. Rerun the command to resume.")
