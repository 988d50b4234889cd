"""`training.stop_at`: a run stops for now, opens like a finished one, and goes on equal to one that never stopped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from mechplateau.cli.console import print_run, print_runs
from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, RunError
from mechplateau.report import run_view
from mechplateau.report.overview import overview
from mechplateau.runs import load_run
from mechplateau.training import loop, train
from mechplateau.training.measure import Measurer
from mechplateau.training.sweep import expand, sweep

from .conftest import tiny

WARMUP = {"schedule": "warmup_cosine", "warmup_steps": 4}


def stopping(at, **training):
    """Rows every 3 steps, checkpoints every 4, of 12."""
    return tiny(training={**WARMUP, "stop_at": at, **training}, evaluation={"every": 3})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(stopping(None), runs_dir=tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    return train(stopping(7), runs_dir=tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy, whose run may go on."""
    return shutil.copytree(stopped_once.path, tmp_path / stopped_once.name)


def same(run, whole, extra=()):
    """Everything in the folders but the record of sessions; Parquet's bytes need not be equal, its rows are."""
    pd.testing.assert_frame_equal(run.metrics, whole.metrics, check_exact=True)
    assert run.phases.during == whole.phases.during
    files = {path.relative_to(whole.path) for path in whole.path.rglob("*.*") if path.is_file()}
    there = {path.relative_to(run.path) for path in run.path.rglob("*.*") if path.is_file()}
    assert there - files == {
        Path(kind, f"step_{step:06d}.safetensors") for step in extra for kind in ("checkpoints", "maps")
    }
    for name in files - {Path("environment.json"), Path("metrics.parquet")}:
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def test_it_is_no_part_of_the_name():
    assert stopping(7).run_name == stopping(None).run_name == stopping(12).run_name
    with pytest.raises(ConfigError, match=r"training\.stop_at: input should be greater than or equal to 1"):
        stopping(0)


def test_a_stopped_run_opens_like_a_finished_one(stopped_once, capsys):
    run = stopped_once
    assert (run.status, run.stopped_at, run.steps) == ("finished", 7, (0, 4, 7))
    assert run.metrics["step"].tolist() == [0, 3, 6, 7]
    assert run.missing == ()
    assert run.phases.after == 7
    assert run.model("after") is not None
    assert repr(run).endswith("stopped at 7, 3 checkpoints)")
    assert not run.finished  # for studies, which need its end
    print_run(run)
    print_runs(overview([run]), {}, "no runs")
    shown = capsys.readouterr().out
    assert shown.count("stopped at 7 of 12") == 2
    assert "Stopped at step 7 of 12 (training.stop_at)." in run_view(run, pictures=False).notices[0]


def test_again_nothing_is_done(stopped):
    class NoStep:
        def on_step(self, step, row):
            raise AssertionError("it trained")

    run = train(stopping(7), runs_dir=stopped.parent, listeners=[NoStep()])
    assert run.stopped_at == 7
    assert (stopped / "resume/step_000007.safetensors").is_file()


@pytest.mark.parametrize("then", [[None], [12], [50], [8, None], [10, 11, 12]])
def test_it_goes_on_equal_to_a_run_that_never_stopped(stopped, whole, then):
    for at in then:
        run = train(stopping(at), runs_dir=stopped.parent)
        assert run.config == stopping(at)
        assert run.stopped_at == (at if at is not None and at < 12 else None)
    config = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text((whole.path / "config.yaml").read_text())
    same(run, whole, extra={7, *then} - {8, 12, 50, None})
    assert f"stop_at: {'null' if then[-1] is None else then[-1]}" in config


def test_the_learning_rate_still_counts_on_all_steps(stopped_once, whole):
    weights = whole.weights(4)
    assert all((tensor == weights[name]).all() for name, tensor in stopped_once.weights(4).items())


def test_a_stop_before_where_the_run_is_is_refused(stopped):
    before = {path: path.read_bytes() for path in stopped.rglob("*.*") if path.is_file()}
    with pytest.raises(
        RunError, match=r"has reached step 7: expected .* at least 7 or null, got 5$"
    ) as caught:
        train(stopping(5), runs_dir=stopped.parent)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in stopped.rglob("*.*") if path.is_file()} == before


class Stop(Exception):
    pass


def interrupted(config, runs_dir, at):
    class Stopper:
        def on_step(self, step, row):
            if step == at:
                raise Stop

    with pytest.raises(Stop):
        train(config, runs_dir=runs_dir, listeners=[Stopper()])


def test_a_run_under_way_may_be_stopped_later_or_where_it_is_but_not_before(tmp_path, whole):
    interrupted(stopping(None), tmp_path, 9)
    with pytest.raises(RunError, match=r"has reached step 9: expected training\.stop_at of at least 9"):
        train(stopping(8), runs_dir=tmp_path)
    assert train(stopping(9), runs_dir=tmp_path).metrics["step"].tolist() == [0, 3, 6, 9]
    run = train(stopping(None), runs_dir=tmp_path)
    same(run, whole, extra={9})


def test_a_run_saved_at_just_that_step_is_measured_and_kept_there(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(loop, "SAVED_EVERY", 0.0)  # at every step
    interrupted(stopping(None), tmp_path, 5)
    run = train(stopping(5), runs_dir=tmp_path)
    assert (run.stopped_at, run.steps) == (5, (0, 4, 5))
    assert run.metrics["step"].tolist() == [0, 3, 5]
    same(train(stopping(None), runs_dir=tmp_path), whole, extra={5})


def test_without_what_it_needs_to_go_on_it_says_so(stopped):
    shutil.rmtree(stopped / "resume")
    assert load_run(stopped).stopped_at == 7
    with pytest.raises(RunError, match=r"trained up to step 7, but nothing is left to resume from"):
        train(stopping(None), runs_dir=stopped.parent)


def test_raised_in_the_folders_own_file(stopped, whole):
    path = stopped / "config.yaml"
    path.write_text(path.read_text().replace("stop_at: 7", "stop_at: null"))
    assert load_run(stopped).stopped_at == 7
    config = RunConfig.parse(load_run(stopped).config.data())
    same(train(config, runs_dir=stopped.parent), whole, extra={7})


def test_what_solves_the_run_at_a_stop_alone_does_not_end_it(tmp_path, monkeypatch):
    """Measured at step 7 for the stop, solved there; a run that never stopped finds out at step 9."""
    row = Measurer.row

    def made_up(self, model, step, *batches):
        return {**row(self, model, step, *batches), "accuracy": float(step >= 7)}

    monkeypatch.setattr(loop.Measurer, "row", made_up)
    once = train(stopping(7, stop_past_solved=0.0), runs_dir=tmp_path)
    assert (once.stopped_at, once.solved_at) == (7, 7)
    run = train(stopping(None, stop_past_solved=0.0), runs_dir=tmp_path)
    assert (run.stopped_at, run.reached, run.solved_at) == (None, 9, 9)
    assert not (run.path / "resume").exists()
    assert train(stopping(11, stop_past_solved=0.0), runs_dir=tmp_path).reached == 9


class Killed(BaseException):
    pass


def test_killed_at_any_write_between_two_stops(stopped, whole, monkeypatch):
    """From the stop at 7 to one at 8, every write and deletion is cut off once; then the run goes on."""
    real = {"replace": os.replace, "unlink": Path.unlink}

    def cut_off(number):
        count = 0

        def cut(call):
            def instead(*arguments, **named):
                nonlocal count
                count += 1
                if count >= number:
                    raise Killed
                return call(*arguments, **named)

            return instead

        monkeypatch.setattr(os, "replace", cut(real["replace"]))
        monkeypatch.setattr(Path, "unlink", cut(real["unlink"]))

    # State, table, configuration, rows, sessions, state; checkpoint, maps, resume and the one before; table, sessions,
    # state.
    for number in range(1, 14):
        copy = shutil.copytree(stopped, stopped.parent / f"cut{number}" / stopped.name)
        cut_off(number)
        with pytest.raises(Killed):
            train(stopping(8), runs_dir=copy.parent)
        monkeypatch.setattr(os, "replace", real["replace"])
        monkeypatch.setattr(Path, "unlink", real["unlink"])
        assert not load_run(copy).metrics.empty
        if number % 2:
            assert train(stopping(8), runs_dir=copy.parent).stopped_at == 8
        elif number < 7:  # before step 8 is reached it may be lowered again
            assert train(stopping(7), runs_dir=copy.parent).stopped_at == 7
        same(train(stopping(None), runs_dir=copy.parent), whole, extra={7})


def test_a_sweep_goes_on_with_a_stopped_run_and_skips_it_else(stopped, whole):
    def outcome(at):
        results = sweep([stopping(at)], runs_dir=stopped.parent, jobs=1, threads=1, device="cpu")
        return results[0].outcome, load_run(stopped).stopped_at

    assert outcome(7) == ("skipped", 7)
    assert outcome(None) == ("finished", None)
    same(load_run(stopped), whole, extra={7})


def test_a_sweep_over_stops_is_refused():
    data = tiny().data()
    assert len(expand(data, ["training.stop_at=7", "seed=0,1"], None)) == 2
    with pytest.raises(ConfigError, match=r"training\.stop_at: expected one for a run, got 7 and 9 for mws-"):
        expand(data, ["training.stop_at=7,9"], None)
