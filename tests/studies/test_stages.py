"""The study of stages: numbers read off tables written out by hand, and claims that data can violate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mechplateau.config import RunConfig
from mechplateau.development.of_runs import kept_llcs
from mechplateau.studies import study_named, training
from mechplateau.studies.claims import check
from mechplateau.studies.missing import hours_of, missing_runs
from mechplateau.studies.recipes import PAPER, Recipe
from mechplateau.studies.recorded import recorded_table
from mechplateau.studies.results import on_record, read_again, summaries_of
from mechplateau.studies.stages import checkpoints
from mechplateau.studies.stages.recipes import LR_END
from mechplateau.studies.stages.released import released_regression, released_value
from mechplateau.studies.stages.summary import (
    INDICES,
    coefficient_numbers,
    coefficients_on_record,
    language_numbers,
    numbers_of_table,
    regression_numbers,
)
from mechplateau.studies.training import finished_runs
from mechplateau.training.loop import train

from .conftest import in_process

STUDY = study_named("stages")
TEXT = RunConfig.for_task("text", task={"content": "0" * 16})


def test_the_released_curves_have_the_papers_rows():
    table = released_regression()
    assert table.groupby("seed").size().tolist() == [190] * 5
    assert released_value(1, 5050, "ridge_gap") == pytest.approx(0.913, abs=1e-3)
    assert released_value(3, 7192, "weight_norm") == pytest.approx(27.472, abs=1e-3)
    assert released_value(5, 5050, "ridge_gap") is None


def test_the_papers_schedule_keeps_the_released_steps():
    config = RunConfig.parse(STUDY.recipes["lr-true"].data(1, PAPER))
    from mechplateau.runs.cadence import Cadence

    kept = set(Cadence(config).kept.until(LR_END))
    released = set(released_regression()["step"])
    assert kept == {step for step in released if step <= LR_END}
    assert {step for step in INDICES if step <= LR_END} <= kept
    whole = set(Cadence(config).kept.until(499_999))
    assert whole == {step for step in released if step < 499_999} | ({499_999} & whole)
    assert len(released) == 190


def test_a_run_is_compared_with_the_released_model_of_its_seed():
    steps = list(INDICES)
    rows = {"step": steps, "ridge_gap": 1.0, "weight_norm": 26.0}
    found = regression_numbers(pd.DataFrame(rows), 1)
    assert found["ridge_gap_off_5050"] == pytest.approx(1.0 - released_value(1, 5050, "ridge_gap"))
    assert found["weight_norm_off_7192"] == pytest.approx(released_value(1, 7192, "weight_norm") - 26.0)
    assert found["icl_4_8_quiet_12221"] is None
    assert regression_numbers(pd.DataFrame(rows), 9)["ridge_gap_off_5050"] is None
    assert regression_numbers(pd.DataFrame(rows)[:1], 1)["ridge_gap_5050"] is None


def language_table(learns: bool = True) -> pd.DataFrame:
    """Eleven rows: bigrams are best at step 200, and from 600 on the model copies; attention is there at 500."""
    steps = np.arange(0, 1100, 100)
    copies = (steps >= 600) & learns
    return pd.DataFrame(
        {
            "step": steps,
            "bigram_excess": np.where(steps == 200, 0.5, 1.0 + steps / 1000),
            "position_delta": steps / 1000,
            "gram_score_3": 1 + steps / 1000,
            "gram_score_4": np.nan,
            "previous_token_L0H0": 0.1,
            "previous_token_L0H1": steps / 2000,
            "prefix_B_L1H0": np.where((steps >= 500) & learns, 0.8, 0.02),
            "prefix_B_L1H1": 0.01,
            "prefix_A_L1H0": 0.003,
            "prefix_A_L1H1": 0.5,
            "composition_K_max": 0.2,
            "repeat_gain": np.where(copies, 6.0, 0.1),
            "repeat_cos": np.where(copies, 0.2, 0.7),
            "repeat_repetition": np.where(copies, 0.1, 0.5),
            "icl": -0.4,
        }
    )


def test_numbers_of_a_language_model_by_hand():
    found = language_numbers(language_table())
    expected = {
        "bigram_at": 200,
        "bigram_low": 0.5,
        "bigram_rise": 1.5,
        "delta_then": 0.2,
        "delta_end": 1.0,
        "previous_token": 0.5,
        "prefix_B": 0.8,
        "prefix_A_of_best": 0.003,
        "gram_gain_3": 2 / 1.2,
        "induction_at": 600,
        "induction_took": 0,
        "prefix_lead": 100,
        "cos_drop": 0.5,
        "repetition_drop": 0.4,
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name
    assert found["gram_gain_4"] is None


def test_coefficients_on_record_are_read_again_and_belong_to_their_run(tmp_path):
    """Another run's results may be put on record from a folder where no chain was sampled."""
    lines = pd.DataFrame(
        {
            "recipe": "lr-true",
            "seed": 1,
            "step": [984, 2843, 5050],
            "llc": [18.0, 70.0, 120.0],
            "paired": [18.6, 70.0, 123.7],
            "loss": [4.0, 3.22, 2.47],
            "mean_loss": [4.43, 4.5, 4.42],
            "trivial_loss": 4.125,
            "n_beta": 66.667,
        }
    )
    lines.to_csv(tmp_path / "coefficients.csv", index=False)
    found = coefficients_on_record(tmp_path, "lr-true", 1)
    assert found["llc_slope"] == pytest.approx(66.667 / 66.667, abs=0.01)
    assert found["llc_over_trivial"] == pytest.approx(0.295)
    assert found["llc_off"] < 0.1
    assert coefficients_on_record(tmp_path, "lr-true", 0) == {}
    assert coefficients_on_record(tmp_path / "nothing", "lr-true", 1) == {}


def test_the_record_says_what_its_files_give():
    record = on_record(STUDY)
    again = read_again(STUDY, record, STUDY.results)
    names = list(record.columns)[list(record.columns).index("definition") + 1 :]
    pd.testing.assert_frame_equal(again[names].astype(float), record[names].astype(float))


def test_what_is_put_on_record_gives_the_same_numbers():
    table = language_table().assign(loss_1=1.0)
    kept = recorded_table(STUDY.reading, table, TEXT)
    assert "loss_1" not in kept
    found, whole = numbers_of_table(kept, TEXT), language_numbers(table)
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        assert found[name] == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-6)), name
    config = RunConfig.parse(STUDY.recipes["lr-5050"].data(1, PAPER))
    rows = pd.DataFrame({"step": list(INDICES), "ridge_gap": 1.0, "mse_1": 2.0})
    kept = recorded_table(STUDY.reading, rows, config)
    assert list(kept) == ["step", "ridge_gap"]
    assert numbers_of_table(kept, config) == regression_numbers(rows, 1)


def test_the_runs_on_record_bear_out_the_claims_about_them():
    summaries = summaries_of(on_record(STUDY), PAPER)
    outcomes = {claim.id: check(claim, summaries) for claim in STUDY.claims if claim.recipe in summaries}
    assert len(outcomes["prefix-B"].values) == 5
    told = {id: outcome.verdict for id, outcome in outcomes.items() if outcome.verdict != "holds"}
    # Prefix matching and the gain rise together.
    assert told.pop("attention-first") == told.pop("attention-first-fine") == "fails"
    assert (
        told.pop("lr-norm-40292") == "fails so far"
    )  # after index 31,000 the norm grows faster than the released one
    # Learning coefficients are sampled after a run is on record; until then they are undefined.
    sampled = {id: verdict for id, verdict in told.items() if "-llc-" not in id or verdict != "undefined"}
    assert set(sampled.values()) <= {"holds so far"}


def test_the_page_of_stages_says_what_is_on_record():
    """Each sentence of `docs/ideas/stages.md` with a number of the record."""
    summaries = summaries_of(on_record(STUDY), PAPER)
    regression = [run for run in summaries["lr-true"] if run["seed"] < 5]
    for step in (5050, 7192, 12221):
        assert max(run[f"ridge_gap_off_{step}"] for run in regression) < 0.04
        assert max(run[f"weight_norm_off_{step}"] for run in regression) < 0.021
    (later,) = summaries["lr-40292"]
    assert round(later["ridge_gap_off_40292"], 3) == 0.006
    assert (round(later["weight_norm_40292"], 2), round(later["weight_norm_off_40292"], 2)) == (32.12, 0.25)
    for run in (*regression, later):
        assert run["llc_off"] < 2.8
        assert run["llc_over_trivial"] > 0
    assert max(abs(run["llc_slope"] - 1) for run in regression) < 0.01
    assert max(run["bigram_at"] for run in summaries["lm-bigram"]) <= 440
    assert max(run["prefix_B"] for run in summaries["lm-bigram"]) < 0.05
    induction = summaries["lm-induction"]
    assert sorted(run["prefix_lead"] for run in summaries["lm-induction-fine"]) == [-50, -20, 0, 0, 20]
    assert {round(run["cos_drop"], 1) for run in induction} == {0.8}
    drops = [run["repetition_drop"] for run in induction]
    assert (round(min(drops), 2), round(max(drops), 2)) == (0.35, 0.47)


def test_a_study_whose_lines_have_no_steps_is_told_what_it_waits_for():
    found = missing_runs(STUDY, on_record(STUDY))
    hours = {run.recipe: run.hours for run in found}
    assert hours_of(STUDY.recipes["lr-7192"], 7192) == hours.get("lr-7192", 0.45 * 7192 / 3600)
    assert STUDY.recipes["lr-7192"].steps(PAPER) == 7192


def test_what_never_copies_has_no_transition():
    found = language_numbers(language_table(learns=False))
    for name in ("induction_at", "induction_took", "prefix_lead", "cos_drop", "repetition_drop"):
        assert found[name] is None
    assert found["prefix_B"] == 0.02


@pytest.mark.parametrize("claim", STUDY.claims, ids=lambda claim: claim.id)
def test_each_claim_can_fail(claim):
    outside = claim.high + 1 if claim.high is not None else claim.low - 1
    inside = claim.high if claim.high is not None else claim.low
    for value, verdict in ((outside, "fails"), (inside, "holds")):
        runs = {claim.recipe: [{"seed": seed, claim.number: value} for seed in range(claim.seeds)]}
        assert check(claim, runs).verdict == verdict


def test_a_run_that_stopped_where_its_recipe_says_is_a_finished_one(tmp_path, monkeypatch):
    recipe = STUDY.recipes["lr-true"]
    small = {
        "task": {"name": "in_context_regression", "d": 2, "n_pairs": 2},
        "model": {"d_model": 4, "n_heads": 1},
        "training": {"steps": 50, "stop_at": 2, "batch_size": 4},
        "checkpoints": {"every": 1},
    }
    monkeypatch.setattr(type(recipe), "data", lambda self, seed, scale: {**small, "seed": seed})
    recipes = {"lr-true": recipe}
    config = RunConfig.parse(recipe.data(0, PAPER))
    assert finished_runs(recipes, "lr-true", [0], PAPER, tmp_path) == {}
    train(config.with_(training={"stop_at": 1}), runs_dir=tmp_path)
    assert finished_runs(recipes, "lr-true", [0], PAPER, tmp_path) == {}
    run = train(config, runs_dir=tmp_path)
    assert finished_runs(recipes, "lr-true", [0], PAPER, tmp_path)[0].path == run.path


def test_recipes_that_stop_one_run_at_different_steps_share_the_longest(tmp_path, monkeypatch):
    base = {
        "task": {"name": "in_context_regression", "d": 2, "n_pairs": 2},
        "model": {"d_model": 4, "n_heads": 1},
        "checkpoints": {"every": 1},
    }
    stops = {"one": 2, "other": 4, "whole": None}
    monkeypatch.setattr(
        Recipe,
        "data",
        lambda self, seed, scale: {
            **base,
            "seed": seed,
            "training": {"steps": 8, "batch_size": 4, "stop_at": stops[self.name]},
        },
    )
    monkeypatch.setattr(training, "sweep", in_process)
    recipes = {name: Recipe(name, "in_context_regression", name, {}) for name in stops}

    def stopped_at(*names):
        runs = training.ensure(recipes, names, [0], PAPER, runs_dir=tmp_path)
        assert len({run.path for several in runs.values() for run in several}) == 1
        return runs[names[0]][0].stopped_at

    assert stopped_at("other", "one") == 4
    assert stopped_at("one") == 4  # it has gone farther already
    assert stopped_at("one", "whole") is None
    assert stopped_at("one") is None
    assert training.finished_runs(recipes, "one", [0], PAPER, tmp_path)[0].reached == 8


def test_figures_measure_checkpoints_with_a_verdict_for_every_coefficient(tmp_path, monkeypatch):
    assert checkpoints.chosen_steps(range(100), 4) == [0, 11, 44, 99]
    assert checkpoints.chosen_steps([0, 1, 2, 3, 99], 4) == [0, 2, 3, 99]
    assert checkpoints.chosen_steps([0, 5], 4) == [0, 5]
    config = RunConfig.for_task(
        "in_context_regression",
        task={"d": 2, "n_pairs": 2},
        model={"d_model": 4, "n_heads": 1},
        training={"steps": 2, "batch_size": 4},
        checkpoints={"every": 1},
    )
    run = train(config, runs_dir=tmp_path)
    short = {**run.task.llc_settings["published"], "draws": 4, "burn_in": 2, "batch_size": 4}
    monkeypatch.setattr(type(run.task), "llc_settings", {"published": short})
    table = checkpoints.Coefficients().measure(run, PAPER)
    assert table["step"].tolist() == [0, 1, 2]
    verdicts = table[[name for name in table if name.startswith("llc ")]]
    assert verdicts.notna().sum(axis=1).tolist() == [1, 1, 1]
    found = coefficient_numbers(run)
    kept = kept_llcs(run)[0]
    assert found["llc_over_trivial"] == pytest.approx(
        (kept.table["mean_loss"] - kept.table["trivial_loss"]).min()
    )
    assert found["llc_slope"] == kept.affine.slope / -short["n_beta"]
    monkeypatch.setattr(type(run.task), "llc_settings", {"published": {**short, "step_size": 1.0}})
    assert coefficient_numbers(run)["llc_slope"] is None
    ood = checkpoints.Afterwards("ood").measure(run, PAPER)
    assert len(STUDY.figure("D.3").panels[0].columns(ood)) == 4
