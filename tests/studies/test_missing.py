"""What the claims still wait for."""

from __future__ import annotations

import pandas as pd
import pytest

from mechplateau.errors import UserError
from mechplateau.studies.missing import asked_for, hours_of, missing_runs
from mechplateau.studies.plateau.study import STUDY
from mechplateau.studies.results import KEY, OLD, check_distinct, on_record

RECIPES = STUDY.recipes


def lines(*named):
    rows = [
        {"recipe": name, "seed": seed, "scale": "paper", "steps": 400, "definition": definition}
        for name, seed, definition in named
    ]
    return pd.DataFrame(rows, columns=[*KEY, "steps", "definition"])


def test_as_many_seeds_are_asked_for_as_decide():
    asked = asked_for(STUDY)
    assert (asked["mws"], asked["mws-init-KQ"], asked["mws-n8"], asked["mws-k3"]) == (5, 5, 3, 1)
    assert asked["mws-frozen-ln1"] == 1
    nothing = missing_runs(STUDY, lines())
    assert len(nothing) == sum(asked.values())


def test_what_is_on_record_is_not_missing_unless_its_numbers_are_old():
    found = missing_runs(STUDY, lines(("mws", 0, None), ("mws", 1, OLD), ("mws", 7, None)))
    mws = {run.seed: run for run in found if run.recipe == "mws"}
    assert sorted(mws) == [1, 2, 3, 4]
    assert [mws[seed].old for seed in (1, 2)] == [True, False]
    assert mws[1].worth == mws[2].worth / 2
    assert "3/mws-c10/took" in mws[2].claims  # it is compared to
    # The first seeds of a recipe tell more than one more does.
    first = next(run for run in missing_runs(STUDY, lines()) if run.recipe == "mws" and run.seed == 2)
    assert first.worth > mws[2].worth
    assert [run.worth for run in found] == sorted((run.worth for run in found), reverse=True)


def test_hours_follow_the_size_of_the_products():
    step = hours_of(RECIPES["mws"], 1)
    assert step * 3600 == pytest.approx(0.45)
    assert hours_of(RECIPES["mws-layers2"], 10) == pytest.approx(20 * step)
    assert hours_of(RECIPES["mws-width64"], 1) == pytest.approx(step / 16)
    assert hours_of(RECIPES["mws-batch512"], 1) == pytest.approx(2 * step)


def test_equal_numbers_under_two_names_are_an_error_unless_it_is_said():
    same = {
        "loss_start": 2.9,
        "loss_end": 1.3,
        "cos_peak": 0.9,
        "cos_end": 0.1,
        "repetition_peak": 0.5,
        "apm_end": 0.7,
    }
    names = ("mws-warmup", "mws-warmup-cosine")
    table = pd.DataFrame(
        [{"recipe": name, "seed": 0, "scale": "paper", "steps": 300, **same} for name in names]
    )
    with pytest.raises(
        UserError, match="mws-warmup-cosine and mws-warmup, seed 0: equal numbers from different"
    ):
        check_distinct(RECIPES, table)
    check_distinct(RECIPES, table.assign(seed=[0, 1]))
    check_distinct(RECIPES, table.assign(loss_end=[1.3, 1.30001]))
    check_distinct(RECIPES, table.assign(recipe=["mws", "mws-locations"]))
    with pytest.raises(UserError, match="mws-c10 and mws, seed 0"):
        check_distinct(RECIPES, table.assign(recipe=["mws-locations", "mws-c10"]))
    # A number that is undefined in both is no sign.
    check_distinct(RECIPES, table.assign(apm_end=None))
    check_distinct(RECIPES, on_record(STUDY))
