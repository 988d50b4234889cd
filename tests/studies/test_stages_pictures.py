"""The pictures of the study of stages: chains with other settings, slopes, toys."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau.config import RunConfig
from mechplateau.development.boundaries import slopes, stages
from mechplateau.studies import study_named
from mechplateau.studies.figures import Material
from mechplateau.studies.recipes import PAPER
from mechplateau.studies.stages import chains, pictures
from mechplateau.studies.stages.released import released_value
from mechplateau.training.loop import train

STUDY = study_named("stages")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = RunConfig.for_task(
        "in_context_regression",
        task={"d": 2, "n_pairs": 2},
        model={"d_model": 4, "n_heads": 1},
        training={"steps": 3, "batch_size": 4},
        checkpoints={"every": 1},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("runs"))


@pytest.fixture(autouse=True)
def short(run, monkeypatch):
    """Few draws; the third setting loses all its chains."""
    paper = {**run.task.llc_settings["published"], "batch_size": 4}
    monkeypatch.setattr(chains, "_SHORT", {"draws": 8, "burn_in": 2, "elasticity": False})
    monkeypatch.setattr(chains, "CHECKPOINTS", 2)
    settings = {"published": paper, "local": {**paper, "step_size": 1e-6}}
    monkeypatch.setattr(type(run.task), "llc_settings", settings)


@pytest.mark.parametrize(
    ("id", "lines"), [("A.3", ("same noise", "new noise")), ("A.6", ("all pairs", "a random pair"))]
)
def test_two_ways_of_sampling_over_checkpoints(run, id, lines):
    figure = STUDY.figure(id)
    table = figure.checkpoints.measure(run, PAPER)
    assert table["step"].tolist() == [0, 3]
    for line in lines:
        assert table[f"{line} verdict"].notna().all()
    assert (table[f"{lines[0]} llc"] != table[f"{lines[1]} llc"]).all()
    sheet = figure.picture(material(run, [table]))
    drawn = [container[0].get_ydata() for container in sheet.axes[0].containers]
    expected = [table[f"{line} llc"].astype(float) for line in lines]
    np.testing.assert_allclose(np.asarray(drawn, dtype=float), expected)
    # No λ̂ without its verdict: in the legend where a line has one, else at each point.
    told = [text.get_text() for text in (*sheet.legends[0].get_texts(), *sheet.axes[0].texts)]
    for line in lines:
        verdicts = set(table[f"{line} verdict"])
        assert all(any(verdict in text for text in told) for verdict in verdicts)


def test_a_random_pair_has_the_loss_of_all_in_the_mean(run, monkeypatch):
    seen = {}

    def taken(model, losses, data, **settings):
        batch = data.batch(0)
        seen["each"] = losses(model, batch)
        seen["all"] = run.task.objective.losses(model(batch.inputs), batch)
        seen["pair"] = batch.pair
        seen["h_max"] = settings["h_max"]
        return type("Found", (), {"llc": 0.0, "chain_sd": 0.0, "verdict": "local"})

    monkeypatch.setattr(chains, "llc", taken)
    chains._of_one_pair(run, 2, 9.0)
    assert seen["each"].shape == (4, 1)
    assert seen["h_max"] == 9.0  # that of the loss of all, so that both are judged alike
    assert torch.equal(seen["each"][:, 0], seen["all"][torch.arange(4), seen["pair"]])
    assert set(seen["pair"].tolist()) <= {0, 1}


def test_one_setting_changed_with_its_verdicts(run, monkeypatch):
    monkeypatch.setattr(chains, "GRID", {name: (value, 2 * value) for name, value in PAPERS.items()})
    monkeypatch.setattr(pictures, "GRID", chains.GRID)
    figure = STUDY.figure("A.4")
    table = figure.checkpoints.measure(run, PAPER)
    # The paper's own values are one setting, in three rows.
    same = {float(table[f"{name} {value:g} llc"].iloc[0]) for name, value in PAPERS.items()}
    assert len(same) == 1
    sheet = figure.picture(material(run, [table]))
    words = [text.get_text() for ax in sheet.axes for text in ax.texts]
    assert sorted(words) == sorted(table[[name for name in table if name.endswith("verdict")]].iloc[0])


PAPERS = {"step_size": 3e-4, "n_beta": 66.667, "localization": 6.67}


def test_traces_say_what_became_of_the_chains(run):
    figure = STUDY.figure("A.5")
    table = figure.checkpoints.measure(run, PAPER)
    sheet = figure.picture(material(run, [table]))
    titles = [ax.get_title("left") for ax in sheet.axes]
    assert [title.rpartition(": ")[2] for title in titles] == table.filter(like="verdict").iloc[0].tolist()
    ends = [[line.get_ydata()[-1] for line in ax.lines] for ax in sheet.axes]
    assert np.mean(ends[0]) == pytest.approx(float(table["the paper's llc"].iloc[0]))


def test_a_lambda_that_is_nothing_but_the_loss_lies_on_the_line(run):
    loss = pd.Series([4.0, 3.0, 2.0, 1.0])
    llc = 66.667 * (4.4 - loss)
    table = pd.DataFrame(
        {
            "step": range(4),
            "chains_loss": loss,
            "llc saturated": llc.where(loss > 2),
            "llc local": llc.where(loss <= 2),
        }
    )
    figure = STUDY.figure("loss-lr-true")
    (ax,) = figure.picture(material(run, [table])).axes
    *points, line = ax.lines
    assert [label.get_text() for label in ax.get_legend().get_texts()][:2] == ["saturated", "local"]
    assert "least squares 66.67, r = 1.0000" in line.get_label()
    np.testing.assert_allclose(line.get_ydata(), [llc.min(), llc.max()])
    assert [np.isfinite(point.get_ydata()).sum() for point in points] == [2, 2]


def test_slopes_of_a_known_curve():
    step = np.unique(np.geomspace(100, 10_000, 60).astype(int))
    found = slopes(pd.DataFrame({"step": step, "y": 3.0 * np.log(step + 1)}), "y")
    assert found["slope"].to_numpy() == pytest.approx(3.0, abs=1e-6)
    assert slopes(pd.DataFrame({"step": step, "y": 1.0}), "y").empty


@pytest.mark.parametrize(("id", "column", "rows"), [("B.1", "test_loss", 1), ("B.2", "mse", 2)])
def test_slopes_are_drawn_with_the_places_where_curves_rest(run, id, column, rows, monkeypatch):
    step = np.unique(np.geomspace(100, 10_000, 60).astype(int))
    x = np.log(step)
    table = pd.DataFrame({"step": step, column: 5 - np.tanh(4 * (x - 5.5)) - np.tanh(4 * (x - 8))})
    monkeypatch.setattr(pictures, "_with_released", lambda run: table)
    sheet = STUDY.figure(id).picture(material(run))
    assert len(sheet.axes) == 2 * rows
    rests = [line.get_xdata()[0] for line in sheet.axes[-2].lines if line.get_linestyle() == ":"]
    found = stages(table, column, loss=column).column.boundaries
    assert rests == [boundary.step for boundary in found if boundary.certain]
    assert any(500 < rest < 1500 for rest in rests)  # between the two falls


def test_toys_are_held_against_what_is_exact(monkeypatch):
    monkeypatch.setattr(pictures, "_TOYS", pictures._TOYS[:1])
    figure = STUDY.figure("2")
    table = figure.data(Material(PAPER, {}))
    assert table["lambda"].tolist() == [1.0]
    assert table["sampled"][0] == pytest.approx(table["expected"][0], abs=0.05)
    monkeypatch.setattr(pictures, "toy_coefficients", lambda material: table)
    assert len(figure.picture(Material(PAPER, {})).axes[0].patches) == 3


def material(run, measured=()):
    return Material(PAPER, {"lr-true": [run.metrics]}, {"lr-true": list(measured)}, {"lr-true": [run]})


def test_runs_are_drawn_beside_the_released_model_of_their_seed(run):
    """Seed 1 has a released model, seed 9 has none and is held against their spread."""
    steps = [8, 984, 5050, 7192]
    norms = np.array([24.9, 25.0, 26.6, 27.3])
    runs = [
        SimpleNamespace(
            config=SimpleNamespace(seed=seed),
            metrics=pd.DataFrame({"step": [*steps, 7193], "ridge_gap": 1.0, "weight_norm": [*norms, 0.0]}),
        )
        for seed in (1, 9)
    ]
    shown = Material(PAPER, {}, {}, {"lr-7192": runs})
    figure = STUDY.figure("B.3-spread")
    table = figure.data(shown)
    assert table["step"].tolist() == 2 * steps  # 7,193 is no released index
    own, other = (table[table["seed"] == seed] for seed in (1, 9))
    theirs = [released_value(1, step, "weight_norm") for step in steps]
    np.testing.assert_allclose(own["released_weight_norm"], theirs)
    assert other["released_ridge_gap"].isna().all()
    sheet = figure.picture(shown)
    _, above, _, below = sheet.axes
    np.testing.assert_allclose(below.lines[0].get_ydata(), (norms - theirs)[1:])
    grey = [line for line in above.lines if line.get_label() == "seeds without one"]
    np.testing.assert_allclose(grey[0].get_ydata(), norms[1:])
    assert sheet.get_suptitle().startswith("Figure B.3-spread.")
    # The claims' ranges, at the indices that the run has reached.
    bars = [container.lines[2][0].get_segments()[0] for container in below.containers]
    assert [bar[:, 0].tolist() + bar[:, 1].tolist() for bar in bars] == [
        [5050, 5050, -0.04, 0.04],
        [7192, 7192, -0.03, 0.03],
    ]


def test_every_coefficient_is_drawn_in_the_color_of_its_verdict(run):
    """Two runs whose checkpoints have other verdicts; where all have one, it is named, too."""
    losses = {name: [4.0, 3.0] for name in ("chains_loss", "chains_mean_loss", "chains_trivial_loss")}
    base = pd.DataFrame({"step": [0, 9], **losses, "chains_elasticity": [np.nan, 0.7]})
    first = base.assign(**{"llc saturated": [1.0, 2.0]})
    second = base.assign(**{"llc saturated": [np.nan, 5.0], "llc local": [4.0, np.nan]})
    figure = STUDY.figure("1-regression")
    sheet = figure.picture(Material(PAPER, {}, {"lr-true": [first, second]}, {"lr-true": [run, run]}))
    points = {}
    for line in sheet.axes[0].lines:
        if line.get_marker() == "o":
            seen = [float(y) for y in line.get_ydata() if np.isfinite(y)]
            points.setdefault((line.get_label(), line.get_color()), []).extend(seen)
    assert {label: values for (label, _), values in points.items()} == {
        "λ̂: saturated": [1.0, 2.0, 5.0],
        "λ̂: local": [4.0],
    }
    alone = figure.picture(Material(PAPER, {}, {"lr-true": [first]}, {"lr-true": [run]}))
    assert alone.legends[0].get_texts()[0].get_text() == "λ̂: saturated"


def test_factors_are_drawn_in_their_order_and_named():
    inputs, _ = STUDY.figure("D.3").panels
    table = pd.DataFrame(columns=[f"ood_inputs_x{g}{end}" for g in (100, 10, 3) for end in ("", "_per_g2")])
    columns = inputs.columns(table)
    assert [inputs.label(name) for name in columns] == ["g = 3", "g = 10", "g = 100"]
