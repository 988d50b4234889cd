"""`stop_past_solved`: a run ends a share of its way past the step that solved it, and is then a finished run."""

from __future__ import annotations

import pytest

from mechplateau.errors import ConfigError
from mechplateau.runs import load_run
from mechplateau.runs.record import read_json
from mechplateau.training import loop, train
from mechplateau.training.measure import Measurer

from .conftest import tiny


@pytest.fixture
def solved_at_5(monkeypatch):
    """Accuracies are made up: 0 before step 5, 1 from there on."""
    row = Measurer.row

    def made_up(self, model, step, *batches):
        return {**row(self, model, step, *batches), "accuracy": float(step >= 5)}

    monkeypatch.setattr(loop.Measurer, "row", made_up)


def test_it_ends_a_share_past_the_step_that_solved_it(tmp_path, solved_at_5):
    run = train(tiny(training={"stop_past_solved": 0.5}), runs_dir=tmp_path)
    assert run.status == "finished"
    assert run.metrics["step"].tolist() == list(range(9))  # the first measured step past 5 · 1.5 = 7.5
    assert run.steps == (0, 4, 8)
    assert read_json(run.path / "state.json") == {"status": "finished", "step": 8}
    assert not (run.path / "resume").exists()
    assert run.model("after") is not None
    assert train(tiny(training={"stop_past_solved": 0.5}), runs_dir=tmp_path).reached == 8


def test_only_at_a_measured_step(tmp_path, solved_at_5):
    run = train(tiny(training={"stop_past_solved": 0.0}, evaluation={"every": 3}), runs_dir=tmp_path)
    assert run.metrics["step"].tolist() == [0, 3, 6]


def test_without_it_or_unsolved_a_run_goes_to_its_end(tmp_path, solved_at_5):
    assert train(tiny(), runs_dir=tmp_path).reached == 12
    assert train(tiny(training={"stop_past_solved": 2.0}), runs_dir=tmp_path).reached == 12


def test_what_is_trained_is_what_the_whole_run_trains(tmp_path, solved_at_5):
    short = train(tiny(training={"stop_past_solved": 0.5}), runs_dir=tmp_path)
    whole = train(tiny(), runs_dir=tmp_path)
    for name, tensor in short.weights(8).items():
        assert (tensor == whole.weights(8)[name]).all()


def test_a_run_that_is_gone_on_with_remembers_when_it_was_solved(tmp_path, solved_at_5):
    class Stop(Exception):
        pass

    class Stopper:
        def on_step(self, step, row):
            if step == 8:
                raise Stop

    config = tiny(training={"stop_past_solved": 1.0})
    with pytest.raises(Stop):
        train(config, runs_dir=tmp_path, listeners=[Stopper()])
    assert train(config, runs_dir=tmp_path).metrics["step"].tolist() == list(range(11))
    assert load_run(tmp_path / config.run_name).status == "finished"


def test_a_negative_share_is_refused():
    with pytest.raises(
        ConfigError, match=r"training\.stop_past_solved: input should be greater than or equal to 0"
    ):
        tiny(training={"stop_past_solved": -1})
