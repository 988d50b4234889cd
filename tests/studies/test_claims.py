"""Claims: every one can hold and can fail, and says which number it means."""

from __future__ import annotations

import pytest

from mechplateau.cli_experiments import markdown_table
from mechplateau.studies.making import claim_data
from mechplateau.studies.plateau.claims import CLAIMS, Claim, check, check_all
from mechplateau.studies.plateau.figures import FIGURES
from mechplateau.studies.plateau.recipes import RECIPES, SCALES
from mechplateau.studies.plateau.summary import summarize
from mechplateau.training import train

from .conftest import shrunk

PROBED = {"probe_plateau", "probe_end", "probe_shuffled"}
IDS = [f"{index}-fig{claim.figure}-{claim.recipe}-{claim.number}" for index, claim in enumerate(CLAIMS)]


def summaries(claim, value):
    """What a run would have to say for the claim's number to be `value`."""
    found = {claim.recipe: [{claim.number: value}]}
    if claim.over:
        found[claim.over] = [{claim.number: 1.0}]
    return found


def outside(low, high):
    return [
        bound
        for bound in (low - 1 if low is not None else None, high + 1 if high is not None else None)
        if bound is not None
    ]


@pytest.mark.parametrize("claim", CLAIMS, ids=IDS)
def test_every_claim_can_hold_and_can_fail(claim):
    assert claim.recipe in RECIPES
    assert claim.over is None or claim.over in RECIPES
    assert claim.figure in FIGURES
    assert claim.low is not None or claim.high is not None
    for scale in SCALES:
        low, high = claim.range(scale)
        inside = low if low is not None else high
        if inside is not None:
            assert check(claim, summaries(claim, inside), scale).verdict == "holds"
        for value in outside(low, high):
            outcome = check(claim, summaries(claim, value), scale)
            assert (outcome.verdict, outcome.value) == ("fails", value)


def test_every_claim_is_about_a_number_that_runs_have(tmp_path):
    numbers = {}
    for claim in CLAIMS:
        recipe = RECIPES[claim.recipe]
        task = recipe.task + str(recipe.settings.get("model")) + str(recipe.settings.get("evaluation"))
        if task not in numbers:
            from mechplateau.config import RunConfig

            run = train(
                RunConfig.parse(shrunk(recipe.data(0, "small")) | {"interventions": []}), runs_dir=tmp_path
            )
            numbers[task] = set(summarize(run.metrics, run.task))
        assert claim.number in numbers[task] | PROBED, claim


CLAIM = Claim(2, "it is near 3", "mws", "drop", 2.5, 3.5)


def test_the_median_over_seeds_decides():
    outcome = check(CLAIM, {"mws": [{"drop": 1.0}, {"drop": 3.0}, {"drop": 3.2}]})
    assert (outcome.verdict, outcome.value, outcome.values) == ("holds", 3.0, (1.0, 3.0, 3.2))
    assert check(CLAIM, {"mws": [{"drop": 1.0}, {"drop": 1.0}, {"drop": 3.2}]}).verdict == "fails"


def test_what_has_not_run_says_so():
    assert check(CLAIM, {}).verdict == "not yet run"
    ratio = Claim(3, "shorter", "mws-c10", "took", None, 0.75, over="mws")
    assert check(ratio, {"mws-c10": [{"took": 1.0}]}).verdict == "not yet run"
    assert {outcome.verdict for outcome in check_all({})} == {"not yet run"}


def test_an_undefined_number_is_undefined():
    outcome = check(CLAIM, {"mws": [{"drop": None}]})
    assert (outcome.verdict, outcome.value, outcome.runs) == ("undefined", None, 1)
    outcome = check(CLAIM, {"mws": [{"drop": None}, {"drop": 3.0}]})
    assert (outcome.verdict, outcome.values, outcome.runs) == ("holds", (3.0,), 2)


def test_a_ratio_is_to_the_median_of_the_other_recipe():
    ratio = Claim(3, "shorter", "mws-c10", "took", None, 0.75, over="mws")
    outcome = check(ratio, {"mws-c10": [{"took": 50}], "mws": [{"took": 100}, {"took": 200}, {"took": 1000}]})
    assert (outcome.verdict, outcome.value) == ("holds", 0.25)
    assert check(ratio, {"mws-c10": [{"took": 50}], "mws": [{"took": 0}]}).verdict == "undefined"


def test_nothing_takes_longer_than_what_never_ended():
    ratio = Claim(4, "longer", "mws-c0.2", "took", 1.5, None, over="mws")
    unsolved = {"seed": 0, "took": 400, "solved_at": None}
    runs = {"mws-c0.2": [{"seed": 0, "took": 1500, "solved_at": None}], "mws": [unsolved]}
    assert check(ratio, runs).verdict == "undefined"
    runs["mws"] = [{"seed": 0, "took": 400, "solved_at": 400}]
    assert check(ratio, runs).verdict == "holds"


def test_the_small_scale_may_have_another_range():
    claim = Claim(2, "it is near 3", "mws", "drop", 2.5, 3.5, small=(0, 1))
    found = {"mws": [{"drop": 0.5}]}
    assert (check(claim, found).verdict, check(claim, found, "small").verdict) == ("fails", "holds")


def test_claims_of_some_figures():
    assert {outcome.claim.figure for outcome in check_all({}, figures=[3, 43])} == {3, 43}


def test_a_ratio_is_to_the_same_seed_where_that_was_run():
    ratio = Claim(3, "shorter", "mws-c10", "took", None, 0.75, over="mws")
    base = [{"seed": 0, "took": 100}, {"seed": 1, "took": 200}, {"seed": 2, "took": None}]
    runs = [
        {"seed": 0, "took": 50},
        {"seed": 1, "took": 50},
        {"seed": 2, "took": 50},
        {"seed": 7, "took": 50},
    ]
    # Seed 2's base is undefined; seed 7 was not run there, so that the median counts.
    assert check(ratio, {"mws-c10": runs, "mws": base}).values == (0.5, 0.25, 50 / 150)


def test_what_ended_before_it_was_solved_is_counted():
    """A plateau is found, and claimed, also where a run ends in the middle of its drop."""
    claim = Claim(2, "there is a plateau", "mws", "plateau", 1, None)
    runs = [{"plateau": 1.0, "solved_at": None}, {"plateau": 1.0, "solved_at": 300}]
    outcome = check(claim, {"mws": runs})
    assert (outcome.verdict, outcome.unsolved) == ("holds", 1)
    assert claim_data(outcome, "paper")["unsolved"] == 1
    assert "| 1, 1 – 1 (2); 1 of 2 not solved | holds |" in markdown_table([outcome], "paper")
    assert "not solved" not in markdown_table([check(claim, {"mws": runs[1:]})], "paper")
