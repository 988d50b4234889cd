"""What is read off a table, by hand and wherever it is told."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mechplateau import signs
from mechplateau.cli import console
from mechplateau.config import RunConfig
from mechplateau.errors import RunError
from mechplateau.report import run_view
from mechplateau.report.claims import claims_of
from mechplateau.runs import Run
from mechplateau.signs import Rows, Sign, Signs, find_plateau
from mechplateau.studies.plateau import panels as study_panels
from mechplateau.studies.plateau.summary import summarize
from mechplateau.tasks import MovingWindowSum
from mechplateau.training import train
from mechplateau.views import key_numbers, render_report
from mechplateau.views.columns import panels

CURVES = Path(__file__).parents[1] / "data" / "mws_authors_code_cpu.csv"
TASK = MovingWindowSum()


def recorded() -> pd.DataFrame:
    """The curves of the paper's own code, as a table, with columns of which only one can stand for the run."""
    curves = pd.read_csv(CURVES)
    table = pd.DataFrame({"step": curves["step"] + 1, "loss": curves["train_loss"]})
    table["accuracy"] = curves["test_accuracy"]
    for output in range(16):
        table[f"accuracy_out_{output}"] = curves[f"accuracy_y{output}"]
        table[f"loss_out_{output}"] = 2.85 * (1 - curves[f"accuracy_y{output}"])
    table["repetition"], table["repetition_data"] = curves["model_repetition"], curves["data_repetition"]
    table["entropy"] = 2.3 - curves["model_repetition"]
    table["entropy_data"] = 2.25
    # A large target is high from the start and stays; the one that is learned begins low and stays below it.
    table["apm_large"], table["apm_window"] = 0.8 + 0 * curves["apm"], curves["apm"]
    # After the drop, and at step 1, a group of outputs comes near 1: neither is on the way.
    table["cos_final"] = np.where(table["step"] > 300, 0.99, 0.5)
    table["cos_final_sums"] = curves["cos"]
    table["apm_zero_count"] = 0
    return table


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    config = RunConfig.for_task(
        "mws",
        model={"d_model": 8},
        training={"steps": 1, "batch_size": 2},
        evaluation={"samples": 2},
    )
    run = train(config, runs_dir=tmp_path_factory.mktemp("runs"), threads=1)
    fresh = Run(run.path)
    fresh.__dict__["metrics"] = recorded()
    return fresh


def test_one_run_says_the_same_everywhere(run, monkeypatch, capsys):
    """Signs, summary, key numbers, claims, pages, `show`, the live display and figures: equal to the last digit."""
    read, table = run.signs, run.metrics
    view = run_view(run, pictures=False)
    numbers, key = summarize(table, TASK), key_numbers(view)
    claims = {claim.key: claim for claim in claims_of(read)}
    assert (read.progress_column, read.collapse_column) == ("apm_window", "cos_final_sums")

    # Plateau and solution.
    plateau = read.plateau
    assert plateau.found
    assert (plateau.onset, plateau.drop, plateau.plateau_level) == (
        (numbers["onset"], numbers["drop"], numbers["plateau_level"])
    )
    assert (key.onset, key.drop, key.plateau_level) == (plateau.onset, plateau.drop, plateau.plateau_level)
    assert run.phases.plateau == plateau
    assert numbers["solved_at"] == key.solved_at == run.solved_at == run.phases.solved_at == read.solved.step
    assert numbers["learned_at"] == read.learned_at == plateau.drop
    # Peaks.
    assert (key.peak_cos.value, key.peak_cos.step) == (read.collapse.value, read.collapse.step)
    assert (numbers["cos_peak"], numbers["cos_peak_at"]) == (read.collapse.value, read.collapse.step)
    assert claims["collapse"].value == read.collapse.value
    assert key.peak_repetition.value == numbers["repetition_peak"] == read.repetition.value
    assert numbers["repetition_excess"] == claims["repetition"].value == read.repetition_excess.value
    assert read.repetition_excess.value == read.repetition.value - table["repetition_data"].mean()
    # Partial solution and attention.
    assert numbers["partial_at"] == read.partial.step
    assert 1 - numbers["partial_lead"] == claims["partial"].value
    assert (key.apm_start, key.apm_end) == (numbers["apm_start"], numbers["apm_end"])
    assert key.apm_drop == read.progress_at_drop.value
    assert numbers["apm_ahead"] == claims["attention"].value == read.ahead_of_loss.value
    assert key.final_accuracy == numbers["accuracy_end"]
    assert key.final_loss == numbers["loss_end"]

    # The same columns in pictures: the report's panels, a study's figures, the live display.
    main = {panel.key: panel.lines[0].column for panel in panels(table, view.plateau)}
    assert (main["apm"], main["cos"]) == ("apm_window", "cos_final_sums")
    assert study_panels.APM.one(table) == "apm_window"
    assert study_panels.COS.one(table) == "cos_final_sums"
    solved_row = int(np.flatnonzero(table["step"] == read.solved.step)[0])
    rows = table.iloc[: solved_row + 1].to_dict("records")
    assert console.stand_for(rows) == {"apm_window": "APM", "cos_final_sums": "COS"}

    # As text.
    monkeypatch.setattr(console, "run_view", lambda *_, **__: view)
    monkeypatch.setenv("COLUMNS", "300")
    console.print_run(run)
    shown, page = capsys.readouterr().out, unescape(render_report(view))
    text = re.sub(r"<script.*?</script>|<[^>]+>", " ", page, flags=re.DOTALL)
    for said in (shown, text):
        assert re.search(rf"{read.collapse.value:.3f}\s+at step {read.collapse.step}", said)
        assert re.search(rf"{read.repetition.value:.3f}\s+at step {read.repetition.step}", said)
        assert f"first at step {read.solved.step}" in said
        assert plateau.reason in " ".join(said.split())
    ends = (key.apm_start, key.apm_drop, key.apm_end)
    assert ", ".join(f"{value:.3f}" for value in ends) in shown
    assert " → ".join(f"{value:.3f}" for value in ends) in text


def test_a_sign_names_its_rows_and_its_column():
    read = Signs(recorded(), TASK)
    onset, drop = read.plateau.onset, read.plateau.drop
    assert read.way == Rows("on the way", 1, drop - 1)
    assert read.on_plateau == Rows("on the plateau", onset, drop - 1)
    assert str(read.on_plateau) == f"on the plateau: steps {onset} to {drop - 1}"
    assert read.collapse.column == "cos_final_sums"
    assert read.collapse.rows == read.way
    assert read.collapse_on_plateau.rows == read.on_plateau
    assert read.repetition_excess.column == "repetition, repetition_data"
    assert read.partial.column == "loss_out_0"
    assert read.ahead_of_loss.rows.last == read.ahead_of_loss.step == read.plateau.end
    assert read.solved.rows == Rows("with an accuracy", 1, 400)
    assert read.plateau.column == "loss"


def small(**columns) -> pd.DataFrame:
    """Eight rows, without a plateau; solved at step 50."""
    base = {"step": np.arange(0, 80, 10), "accuracy": [0.1] * 5 + [0.95, 0.94, 0.99]}
    return pd.DataFrame({**base, "loss": np.linspace(3, 1, 8), **columns})


def test_peaks_and_rows_by_hand():
    values = [9.0, 1.0, np.nan, 4.0, 4.0, 8.0, 0.0, 0.0]
    read = Signs(small(x=values, repetition=values, repetition_data=1.0))
    # Step 0 is the initialization, step 50 is where it had learned; of equal values the first.
    assert read.peak("x") == Sign(4.0, 30, "x", Rows("on the way", 10, 40))
    assert read.low("x") == Sign(1.0, 10, "x", Rows("on the way", 10, 40))
    assert read.repetition_excess.value == 3.0
    assert read.on_plateau == Rows("on the plateau", None, None)
    assert read.collapse == Sign(None, None, "cos_final", read.way)
    assert (read.first("x").value, read.last("x").value) == (9.0, 0.0)
    # As near to two rows: the earlier one. Undefined there is undefined, not the next value.
    assert (read.at("x", 35).value, read.at("x", 35).step) == (4.0, 30)
    assert read.at("x", 21) == Sign(None, None, "x", Rows("nearest to step 21", 20, 20))
    assert read.at("x", None).value is None
    # Data that never repeat leave no ratio, but an excess.
    assert Signs(small(repetition=values, repetition_data=0.0)).repetition_excess.value == 4.0


def test_a_loss_that_comes_back_has_not_diverged():
    for end, at in (([1.0, np.nan], 70), ([np.nan, np.inf], 60), ([np.nan, 1.0], None)):
        assert Signs(small(loss=[3.0] * 6 + end)).diverged_at == at
    assert Signs(small(loss=[np.nan] * 8)).diverged_at == 0
    assert Signs(small().iloc[:0]).diverged_at is None


def test_the_progress_that_rises_most_stands_for_a_run():
    end = {"apm_large": np.linspace(0.6, 0.7, 8), "apm_late": [0.0] * 6 + [0.5, np.nan]}
    assert signs.progress_column(small(**end)) == "apm_late"  # up to its last defined value
    assert signs.progress_column(small(apm_zero_count=5)) is None
    assert signs.progress_column(small(apm_a=np.nan, apm_b=[0.5] * 8)) == "apm_b"


@pytest.mark.parametrize(("accuracy", "at"), [(0.9499, None), (0.95, 50)])
def test_solved_from_one_bound_on(accuracy, at):
    table = small(accuracy=[0.1] * 5 + [accuracy] * 3)
    assert Signs(table).solved.step == at
    assert signs.is_solved(accuracy) == (at is not None)
    assert not signs.is_solved(None)


def test_any_loss_may_have_the_plateau():
    """The loss of the masked entries drops; that of all entries does not stay."""
    steps = np.arange(200)
    masked = np.where(steps < 20, 3 - steps / 20, np.where(steps < 150, 2.0, 0.1))
    table = pd.DataFrame({"step": steps, "loss": 3 - steps * 0.01, "loss_masked": masked})
    assert not signs.plateau(table).found
    found = signs.plateau(table, "loss_masked")
    assert (found.found, found.column, found.drop) == (True, "loss_masked", 150)
    assert Signs(table, SimpleNamespace(plateau_column="loss_masked")).plateau == found
    assert Signs(table, column="loss_masked").plateau == found
    with pytest.raises(ValueError, match="expected a column 'loss_hidden', got step, loss, loss_masked"):
        signs.plateau(table, "loss_hidden")


class TestWhileItRuns:
    STEPS, LOSS = recorded()["step"].to_numpy(), recorded()["loss"].to_numpy()

    @pytest.mark.parametrize("rows", [100, 120, 140, 160, 170])
    def test_on_a_plateau_and_no_drop_yet(self, rows):
        found = find_plateau(self.STEPS[:rows], self.LOSS[:rows], running=True)
        assert (found.state, found.found, found.drop) == ("no drop yet", False, None)
        # The onset is that of the finished run, 72, before anything of the drop is known.
        assert 66 <= found.onset <= 73
        assert found.plateau_level == pytest.approx(2.63, abs=0.015)
        assert found.reason.endswith(f"since step {found.onset}, no drop yet up to step {rows}.")
        assert not find_plateau(self.STEPS[:rows], self.LOSS[:rows]).onset

    def test_then_it_drops(self):
        whole = find_plateau(self.STEPS, self.LOSS)
        for rows in (200, 400):
            found = find_plateau(self.STEPS[:rows], self.LOSS[:rows], running=True)
            assert found.state == "dropped"
            assert found == find_plateau(self.STEPS[:rows], self.LOSS[:rows])
        assert found.onset == whole.onset

    @pytest.mark.parametrize("falls", ["linear", "logarithm", "power"])
    @pytest.mark.parametrize("rows", [50, 400, 3000])
    def test_what_goes_on_falling_is_no_plateau(self, falls, rows):
        steps = np.arange(rows)
        loss = {
            "linear": 3 - steps / rows,
            "logarithm": 7 - np.log(steps + 1) / 2,
            "power": (steps + 1) ** -0.3,
        }[falls]
        assert find_plateau(steps, loss, running=True).state == "none"

    def test_from_the_start_and_undefined_rows(self):
        steps = np.arange(60)
        flat = np.full(60, 2.0) + 0.001 * np.random.default_rng(0).standard_normal(60)
        flat[[5, 20]] = np.nan
        assert find_plateau(steps, flat, running=True).onset == 0
        assert find_plateau(steps[:9], flat[:9], running=True).state == "none"

    def test_a_level_loss_of_a_solved_run_is_its_end(self):
        table = small_run(solved=True)
        assert Signs(table, running=True).plateau.state == "none"
        unsolved = Signs(small_run(solved=False), running=True)
        assert unsolved.plateau.state == "no drop yet"
        assert unsolved.on_plateau.last == 99
        assert unsolved.learned_at is None
        assert Signs(small_run(solved=False)).plateau.state == "none"


def small_run(solved: bool) -> pd.DataFrame:
    steps = np.arange(100)
    loss = np.where(steps < 20, 3 - steps / 20, 2.0)
    return pd.DataFrame({"step": steps, "loss": loss, "accuracy": 1.0 if solved else 0.2})


def test_a_run_in_progress_is_shown_to_be_on_its_plateau(run, monkeypatch, capsys):
    """By `show`, the verdict and the cards; its phases have no "during" yet."""
    fresh = Run(run.path)
    fresh.__dict__["metrics"] = recorded().iloc[:120]
    monkeypatch.setattr(Run, "status", "running")
    since = fresh.signs.plateau.onset
    assert 66 <= since <= 73
    view = run_view(fresh, pictures=False)
    said = f"since step {since}, no drop yet up to step 120."
    console.print_run(fresh)
    page = unescape(render_report(view))
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in page
    assert f"on a plateau since step {since}, no drop yet<" in page
    assert fresh.phases.during is None
    with pytest.raises(RunError, match=rf"no plateau with a drop was found, .* {said}"):
        fresh.phases.step("during")
    # The same rows of a run that ended there are no plateau: nothing more will come.
    monkeypatch.setattr(Run, "status", "finished")
    done = Run(run.path)
    done.__dict__["metrics"] = recorded().iloc[:120]
    assert done.signs.plateau.state == "none"


def test_a_table_without_steps_is_named():
    with pytest.raises(ValueError, match="table: expected a column 'step', got loss"):
        _ = Signs(pd.DataFrame({"loss": [1.0, 2.0]})).plateau
