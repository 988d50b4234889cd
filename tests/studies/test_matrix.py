"""The study of matrix completion: recipes, numbers read off a table, and claims that data can violate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau import RunConfig, train
from mechplateau.models.kinds import kind_of
from mechplateau.signs import completion_phases
from mechplateau.studies import Material, study_named
from mechplateau.studies.claims import check
from mechplateau.studies.matrix import inside, maps, pictures
from mechplateau.studies.matrix.inside import Inside
from mechplateau.studies.matrix.numbers import around, columns_read, from_table, of_gpt
from mechplateau.tasks.matrix_completion import MatrixCompletion

STUDY = study_named("matrix")
TINY = RunConfig.for_task("matrix_completion", preset="tiny").task
E = 0.4


@pytest.mark.parametrize("scale", ["paper", "tiny", "small"])
def test_every_recipe_is_a_configuration(scale):
    names = set()
    for recipe in STUDY.recipes.values():
        config = RunConfig.parse(recipe.data(0, scale))
        assert config.model.kind == ("gpt" if recipe.name == "gpt" else "encoder")
        names.add((config.run_name, str(recipe.start)))
        if recipe.start is not None:
            parts = kind_of(config.model).patterns
            assert set(recipe.start.settings["parts"]) < set(parts)
    assert len(names) == len(STUDY.recipes)


def test_the_papers_size_is_the_default():
    config = RunConfig.parse(STUDY.recipes["mc"].data(0, "paper"))
    assert (config.task.m, config.task.n, config.task.rank, config.task.vocab_size) == (7, 7, 2, 2002)
    assert (config.model.d_model, config.model.n_layers, config.model.n_heads) == (768, 4, 8)
    assert (config.training.steps, config.training.batch_size, config.training.lr) == (50_000, 256, 1e-4)
    assert (config.evaluation.every, config.evaluation.samples) == (50, 256)


def table() -> pd.DataFrame:
    """A plateau to step 1000, then a drop; attention rises from step 200 on, hidden states spread after the drop."""
    steps = 50 * np.arange(41)
    masked = np.where(steps < 1000, 0.4, np.maximum(0.4 - (steps - 950) * 0.001, 0.1))
    return pd.DataFrame(
        {
            "step": steps,
            "loss": 0.3 * masked,
            "loss_obs": np.where(steps == 0, 0.5, 0.0),
            "loss_mask": masked,
            "spread": np.where(steps < 1000, 0.0, 0.8),
            "apm_mask_L0": 0.25 + np.clip(steps - 200, 0, None) / 10_000,
            "cos_mask_L1": np.where(steps < 600, 0.9, np.where(steps < 1100, 0.99, 0.6)),
            "cos_same_L1": np.full(41, 0.95),
        }
    )


def test_numbers_of_a_table():
    found = from_table(table(), E, 2, 500)
    assert found["onset"] == 1000
    assert found["level_share"] == pytest.approx(1.0)
    assert found["loss_before_share"] == pytest.approx(1.0)
    assert found["apm_before"] == pytest.approx(0.25 + 300 / 10_000)  # around step 500
    assert found["apm_gain"] == pytest.approx(0.03)
    assert found["cos_peak"] == pytest.approx(0.99)
    assert found["cos_peak_lead"] == 400
    assert found["cos_onset"] == pytest.approx((4 * 0.99 + 0.6) / 5)
    assert found["cos_end"] == pytest.approx(0.6)
    assert found["cos_excess"] == pytest.approx(0.04)
    assert found["mask_end_share"] == pytest.approx(0.25)
    assert (found["dropped"], found["onset_or_end"]) == (1.0, 1000)


def test_a_run_that_does_not_drop():
    flat = table().assign(loss_mask=0.4)
    found = from_table(flat, E, 2, 500)
    assert (found["dropped"], found["onset"], found["onset_or_end"]) == (0.0, None, 2000)
    assert found["apm_before"] is None
    assert found["apm_gain"] is None
    without = from_table(flat.assign(loss_obs=1.0), E, 2, 500)
    assert (without["plateau"], without["onset_or_end"]) == (0.0, None)


def test_an_onset_without_a_drop_is_no_drop():
    """Two noisy evaluations below 0.9 of the plateau are an onset; the run still is on its plateau."""
    noisy = table().assign(loss_mask=0.4)
    noisy.loc[[20, 21], "loss_mask"] = 0.35
    found = from_table(noisy, E, 2, 500)
    assert (found["onset"], found["drop"]) == (1000, None)
    assert (found["dropped"], found["onset_or_end"]) == (0.0, 2000)


def test_around_a_step():
    assert around(table(), "loss_mask", 1050) == pytest.approx(np.mean([0.4, 0.35, 0.3, 0.25, 0.2]), abs=0.06)
    assert around(table(), "loss_mask", -50) is None
    assert around(table(), "not_there", 100) is None


@pytest.mark.parametrize("claim", STUDY.claims, ids=lambda claim: claim.id)
def test_every_claim_can_hold_and_can_fail_at_every_scale(claim):
    def verdict(value, scale):
        # As a ratio it is to a run that has 1.
        base = {claim.over: [{claim.number: 1.0}]} if claim.over else {}
        return check(claim, base | {claim.recipe: [{claim.number: value}] * claim.seeds}, scale).verdict

    for scale in ("paper", "tiny", "small"):
        low, high = claim.range(scale)
        assert verdict(float(high if low is None else low), scale) == "holds"
        for bound, away in ((low, -1.0), (high, 1.0)):
            assert bound is None or verdict(bound + away, scale) == "fails"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three steps of a narrow encoder."""
    config = RunConfig.for_task(
        "matrix_completion",
        preset="tiny",
        model={"n_heads": 2, "d_model": 16},
        training={"steps": 3, "batch_size": 4},
        evaluation={"every": 1, "samples": 8},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("runs"))


def test_checkpoints_are_looked_at_once(run, monkeypatch):
    table = Inside().measure(run, "tiny")
    assert table["step"].tolist() == list(run.steps) == [0, 3]
    assert {"copy_mask", "probe_masked_L1", "partner_other", "sign_auc", "position_col"} <= set(table)
    assert table.notna().all(axis=None)
    assert run.notes("inside", Inside().settings("tiny")).steps() == run.steps
    monkeypatch.setattr(inside, "look", lambda *_: pytest.fail("looked at again"))
    assert Inside().measure(run, "tiny").equals(table)


def test_numbers_of_a_run(run):
    found = STUDY.numbers(run, "tiny")
    assert found["steps"] == 3
    assert found["dropped"] == 0.0
    assert 0 < found["partner_error_other"] < 5
    assert found["partner_row"] <= found["partner_line"] <= 1
    # Nothing is copied after three steps, so there is no level to compare with.
    assert found["identifiable_share"] is None


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Three steps of a narrow GPT that writes 2 × 3 matrices."""
    config = RunConfig.for_task(
        "matrix_completion_gpt",
        preset="tiny",
        task={"m": 2, "n": 3},
        model={"d_model": 16},
        training={"steps": 3, "batch_size": 4},
        evaluation={"every": 1, "samples": 8},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("written"))


@pytest.mark.parametrize("id", ["3", "4", "12", "19", "22", "23"])
def test_pictures(run, written, id, monkeypatch):
    monkeypatch.setattr(pictures, "_MATRICES", 8)
    figure = STUDY.figure(id)
    material = Material("tiny", {}, {}, {"mc": [run], "gpt": [written]})
    assert figure.picture(material).axes
    if figure.data is not None:
        table = figure.data(material)
        assert len(table) > 3
        assert table.notna().all(axis=None)


def test_one_mask_for_all_matrices():
    """The paper's: rows 3 and 6 but for (3, 1) and (6, 5). Of 4 × 4, rows 2 and 3."""
    paper = maps.one_mask(MatrixCompletion(), 3, seed=0)
    masked = {(3, j) for j in range(7) if j != 1} | {(6, j) for j in range(7) if j != 5}
    for one in paper.masked.view(3, 7, 7):
        assert {tuple(cell) for cell in one.nonzero().tolist()} == masked
    small = maps.one_mask(TINY, 2, seed=0)
    cells = small.masked.view(2, 4, 4)[1].nonzero().tolist()
    assert cells == [[2, 0], [2, 2], [2, 3], [3, 0], [3, 1], [3, 3]]
    values = TINY.token_values[small.inputs]
    assert torch.equal(values[small.observed], small.targets[small.observed])
    assert (small.inputs[small.masked] == 0).all()
    for task in (MatrixCompletion(m=1, n=1, rank=1), MatrixCompletion(m=2, n=1, rank=1)):
        assert maps.one_mask(task, 2, seed=0).observed.any()


def test_a_gpts_map_is_of_the_cells_that_it_writes(written):
    tokens = written.config.task.sample(5, seed=0)[:, :-1]
    model = written.model(3)
    layers = maps.mean_patterns(model, tokens)
    assert [one.shape for one in layers] == [(2, 12, 12)] * 2
    assert np.allclose(layers[0].sum(-1), 1, atol=1e-5)
    drawn = STUDY.figure("12").picture(Material("tiny", {}, {}, {"gpt": [written]}))
    assert [ax.images[0].get_array().shape for ax in drawn.axes[:4]] == [(6, 12)] * 4


def test_numbers_of_a_gpt(written):
    found = STUDY.numbers(written, "tiny")
    assert found["steps"] == 3
    assert found["copied_at"] is None
    written_cells = pd.DataFrame(
        {
            "step": range(0, 100, 10),
            "loss": 1.0,
            "accuracy_obs": [0, 0.6, 0.4, 0.5, 0.9, 1, 1, 1, 1, 1],
            "accuracy_mask": 0.25,
        }
    )
    found = of_gpt(written_cells)
    assert (found["copied_at"], found["right_observed"], found["right_masked"]) == (30, 1.0, 0.25)
    names = columns_read(written.config, list(written.metrics.columns))
    assert set(names) <= set(written.metrics.columns)


@pytest.mark.slow
def test_tiny_leaves_its_plateau(tmp_path):
    """The preset, to its onset: 40 seconds of one core."""
    config = RunConfig.for_task("matrix_completion", preset="tiny", training={"stop_at": 2000}, seed=1)
    run = train(config, runs_dir=tmp_path, threads=1)
    phases = completion_phases(run.metrics, config.task.second_moment)
    assert phases.level == pytest.approx(0.39, abs=0.02)
    assert phases.copying <= 200
    assert 1000 <= phases.onset <= 2000
