"""`checkpoints.from_onset_every`: more checkpoints from the step on at which the plateau shows in the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mechplateau.runs import load_run
from mechplateau.runs.cadence import Cadence
from mechplateau.signs import LivePlateau
from mechplateau.training import loop, train
from mechplateau.training.measure import Measurer

from .conftest import tiny

STEPS = 60


def curve(step):
    """Falls from 3 to 2 by step 8, stays, drops at step 45."""
    return 2.0 + max(0.0, 1 - step / 8) + 1e-4 * (step % 3) - 1.5 * (step >= 45)


@pytest.fixture
def made_up(monkeypatch):
    """The losses of `curve`; accuracies of 0."""
    row = Measurer.row

    def instead(self, model, step, *batches):
        return {**row(self, model, step, *batches), "loss": curve(step), "accuracy": 0.0}

    monkeypatch.setattr(loop.Measurer, "row", instead)


def watching(every=5, **sections):
    checkpoints = {"every": 25, "from_onset_every": every}
    return tiny(training={"steps": STEPS}, checkpoints=checkpoints, **sections)


def first_seen(steps):
    """The first of these rows up to which the run was told to be on its plateau."""
    live = LivePlateau()
    for step in steps:
        live.note(step, curve(step))
    return live.seen


SEEN = first_seen(range(STEPS + 1))


def test_the_example_is_seen_on_its_plateau():
    assert SEEN == 17


def test_it_keeps_more_from_where_the_plateau_is_seen(tmp_path, made_up):
    run = train(watching(), runs_dir=tmp_path)
    assert set(run.steps) == {0, 25, 50, 60, *range(SEEN, STEPS + 1, 5)}
    assert (run.missing, run.missing_maps) == ((), ())
    assert run.phases.during is not None
    assert watching().run_name != tiny(training={"steps": STEPS}, checkpoints={"every": 25}).run_name


def test_what_is_measured_follows(tmp_path, made_up):
    run = train(watching(evaluation={"every": 2, "at": "checkpoints"}), runs_dir=tmp_path)
    seen = first_seen(sorted({*range(0, STEPS + 1, 2), 25}))  # 25 is kept, and so measured
    more = {0, 25, 50, 60, *range(seen, STEPS + 1, 5)}
    assert run.steps == tuple(sorted(more))
    # 25 is measured before anything is seen, too.
    assert run.metrics["step"].tolist() == sorted({*range(0, STEPS + 1, 2), *more})


class Stop(Exception):
    pass


@pytest.mark.parametrize("saved_every", [0.0, 120.0])
def test_a_resumed_run_keeps_the_same(tmp_path, made_up, monkeypatch, saved_every):
    config = watching(evaluation={"every": 2, "at": "checkpoints"})
    whole = train(config, runs_dir=tmp_path / "whole")
    monkeypatch.setattr(loop, "SAVED_EVERY", saved_every)
    before = iter([whole.steps[1] - 1, whole.steps[1], 46])

    class Stopper:
        at = next(before)

        def on_step(self, step, row):
            if step == self.at:
                self.at = next(before, None)
                raise Stop

    stopper = Stopper()
    while stopper.at is not None:
        with pytest.raises(Stop):
            train(config, runs_dir=tmp_path / "cut", listeners=[stopper])
        left = load_run(tmp_path / "cut" / config.run_name)
        assert left.missing == ()
    run = train(config, runs_dir=tmp_path / "cut")
    pd.testing.assert_frame_equal(run.metrics, whole.metrics, check_exact=True)
    written = {path.relative_to(whole.path) for path in whole.path.rglob("*.*") if path.is_file()}
    assert {path.relative_to(run.path) for path in run.path.rglob("*.*") if path.is_file()} == written
    for name in written - {Path("environment.json"), Path("metrics.parquet")}:
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()


def rows(loss, accuracy=0.0, column="loss"):
    return [{"step": step, "accuracy": accuracy, column: float(value)} for step, value in enumerate(loss)]


def kept_after(noted, config=None):
    cadence = Cadence(config or watching())
    cadence.note(*noted)
    return cadence.kept.until(STEPS)


def test_no_more_is_kept_where_no_plateau_shows():
    plain = [0, 25, 50, 60]
    steps = np.arange(STEPS + 1)
    assert kept_after(rows(3 - steps / 30)) == plain  # falls steadily
    assert kept_after(rows(2 + 0 * steps)) == plain  # level from the first row on
    assert kept_after(rows(map(curve, steps), accuracy=1.0)) == plain  # solved
    assert kept_after(rows(map(curve, steps))) != plain


def test_it_reads_the_column_that_the_tasks_plateau_is_defined_on(monkeypatch):
    config = watching()
    monkeypatch.setattr(type(config.task), "plateau_column", "masked_loss", raising=False)
    noted = rows(map(curve, range(STEPS + 1)))
    assert kept_after(noted, config) == [0, 25, 50, 60]
    masked = [{**row, "loss": 3.0, "masked_loss": row["loss"]} for row in noted]
    assert kept_after(masked, config) == sorted({0, 25, 50, 60, *range(SEEN, STEPS + 1, 5)})
    assert Cadence.of_table(config, pd.DataFrame(masked)).kept.until(STEPS) == kept_after(masked, config)


def test_a_row_that_only_a_stop_adds_says_nothing():
    config = watching(evaluation={"every": 7})
    noted = [row for row in rows(map(curve, range(STEPS + 1))) if row["step"] % 7 == 0]
    more = {"step": 41, "accuracy": 1.0, "loss": 0.0}
    assert kept_after([*noted[:6], more], config) == kept_after(noted[:6], config)
