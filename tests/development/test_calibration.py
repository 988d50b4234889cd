"""Scans of settings at a checkpoint of a run: kept beside it, resumed, and drawn in the report, with parts of it."""

from __future__ import annotations

import pandas as pd
import pytest

from mechplateau.config import RunConfig
from mechplateau.development import calibrate, calibrate_run, calibration, kept_scans, llc_over_run
from mechplateau.development.of_runs import kept_llcs
from mechplateau.errors import UserError
from mechplateau.report import save_report
from mechplateau.report.development import parts_section, scan_section
from mechplateau.training import train
from mechplateau.views.learning_coefficients import VERDICT_COLORS, plot_components, plot_settings

GRID = {"localizations": [10.0], "n_betas": [20.0, 40.0], "shares": [0.1, 0.5]}
SHORT = {"chains": 2, "draws": 3, "burn_in": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = RunConfig.for_task(
        "mws",
        task={"n": 3, "k": 2, "p": 5, "max_num": 4},
        model={"d_model": 8},
        training={"steps": 4, "batch_size": 8},
        checkpoints={"every": 2},
        evaluation={"samples": 8},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("runs"), threads=1)


def test_a_scan_that_was_cut_off_resumes(run, monkeypatch):
    own, calls = calibration.calibrate, []

    def counted(*given, **settings):
        calls.append(settings["n_betas"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return own(*given, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(calibration, "calibrate", counted)
        with pytest.raises(KeyboardInterrupt):
            calibrate_run(run, 2, **GRID, **SHORT)
        assert len(kept_scans(run)[2]) == 2
        table = calibrate_run(run, 2, **GRID, **SHORT)
        assert len(calls) == 5  # the two that were done are not done again
        pd.testing.assert_frame_equal(calibrate_run(run, 2, **GRID, **SHORT), table)
    assert list(table.columns[:5]) == ["n_beta", "localization", "step_size", "share", "verdict"]
    h_max = table["h_max"].iloc[0]
    for line in table.to_dict("records"):
        assert line["stability"] == pytest.approx(0.4 * line["share"])
        assert line["step_size"] == pytest.approx(0.4 * line["share"] / (line["n_beta"] * h_max + 10.0))
    # One of its settings, alone: to the bit.
    first = table.iloc[0]
    alone = calibrate(
        run.model(2), run.task, step_sizes=[first["step_size"]], localizations=[10.0], n_betas=[20.0], **SHORT
    )
    assert alone["paired"].iloc[0] == first["paired"]
    assert alone["trivial_loss"].iloc[0] == run.task.trivial_loss


def test_wrong_requests_in_one_line(run):
    with pytest.raises(UserError, match="shares: expected numbers above 0"):
        calibrate_run(run, 2, shares=[0.0])
    with pytest.raises(UserError, match="expected at least one value each"):
        calibrate_run(run, 2, n_betas=[])
    with pytest.raises(UserError, match="during"):
        calibrate_run(run)  # it has no plateau


def test_the_report_shows_parts_and_the_scan(run, tmp_path):
    assert parts_section(run) is None
    settings = {
        "n_beta": 50.0,
        "step_size": 1e-5,
        "chains": 2,
        "draws": 3,
        "batch_size": 8,
        "elasticity": False,
    }
    llc_over_run(run, [0, 2, 4], parts=["blocks.*.attn.*"], **settings)
    llc_over_run(run, [0, 4], **settings)
    assert [found.parts for found in kept_llcs(run)] == [None, ["blocks.*.attn.*"]]  # all weights first
    legend = [text.get_text() for text in parts_section(run).picture.axes[0].get_legend().get_texts()]
    assert legend[:2] == ["all weights", "blocks.*.attn.*"]
    calibrate_run(run, 2, **GRID, **SHORT)
    assert "4 settings of ε, γ and nβ at step 2: 0 of them" in scan_section(run).text[0]
    page = save_report(run, tmp_path / "report.html").read_text()
    assert "Learning coefficient by part" in page
    assert "Settings of the chains" in page


def test_pictures_of_settings_and_parts():
    scan = pd.DataFrame(
        {
            "n_beta": [1.0, 1.0, 10.0, 10.0],
            "localization": [1.0, 2.0, 1.0, 2.0],
            "step_size": 0.1,
            "verdict": ["local", "sliding", "saturated", "chain lost"],
            "paired": [2.0, -3.0, 50.0, None],
            "elasticity": [0.1, None, 0.9, None],
        }
    )
    figure = plot_settings(scan)
    left, right = figure.axes
    assert [text.get_text() for text in left.texts] == ["2\n(0.10)", "-3\n(–)"]
    assert [text.get_text() for text in right.texts] == ["50\n(0.90)", "–"]
    from matplotlib.colors import to_hex

    colors = [to_hex(patch.get_facecolor()) for axes in (left, right) for patch in axes.patches]
    assert colors == [VERDICT_COLORS[verdict] for verdict in scan["verdict"]]
    table = pd.DataFrame(
        {
            "step": [0, 5],
            "paired": [1.0, 2.0],
            "loss": [1.0, 0.5],
            "mean_loss": [1.1, 0.9],
            "trivial_loss": 1.0,
            "verdict": ["saturated", "local"],
        }
    )
    legend = [text.get_text() for text in plot_components({"mlp": table}).axes[0].get_legend().get_texts()]
    assert legend == ["mlp", "saturated", "local"]
