"""Claims: every one can hold and can fail, and says which number it means."""

from __future__ import annotations

import pytest

from mechplateau.cli.studies import markdown_table
from mechplateau.studies.claims import Claim, check, check_all, claims_table
from mechplateau.studies.making import claim_data
from mechplateau.studies.plateau.claims import CLAIMS
from mechplateau.studies.plateau.study import STUDY
from mechplateau.studies.plateau.summary import summarize
from mechplateau.studies.results import on_record
from mechplateau.training import train

from .conftest import shrunk

PROBED = {"probe_plateau", "probe_end", "probe_shuffled"}
SCALES = ("paper", "small")


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


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_can_hold_and_can_fail(claim):
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
        recipe = STUDY.recipes[claim.recipe]
        task = recipe.task + str(recipe.settings.get("model")) + str(recipe.settings.get("evaluation"))
        if task not in numbers:
            from mechplateau.config import RunConfig

            run = train(
                RunConfig.parse(shrunk(recipe.data(0, "small")) | {"interventions": []}), runs_dir=tmp_path
            )
            numbers[task] = set(summarize(run.metrics, run.task))
        assert claim.number in numbers[task] | PROBED, claim


def claim_of(**fields):
    """A claim about the drop of mws, but for these fields."""
    given = {"text": "it is near 3", "recipe": "mws", "number": "drop", "low": 2.5, "high": 3.5}
    return Claim(study="plateau", id="2/it", figure="2", **{**given, **fields})


def shorter(recipe="mws-c10", low=None, high=0.75):
    return claim_of(recipe=recipe, number="took", over="mws", low=low, high=high)


CLAIM = claim_of()


def test_the_median_over_seeds_decides():
    outcome = check(CLAIM, {"mws": [{"drop": 1.0}, {"drop": 3.0}, {"drop": 3.2}]})
    assert (outcome.verdict, outcome.value, outcome.values) == ("holds", 3.0, (1.0, 3.0, 3.2))
    assert check(CLAIM, {"mws": [{"drop": 1.0}, {"drop": 1.0}, {"drop": 3.2}]}).verdict == "fails"


def test_what_has_not_run_says_so():
    assert check(CLAIM, {}).verdict == "not yet run"
    ratio = shorter()
    assert check(ratio, {"mws-c10": [{"took": 1.0}]}).verdict == "not yet run"
    assert {outcome.verdict for outcome in check_all(CLAIMS, {})} == {"not yet run"}


def test_an_undefined_number_is_undefined():
    outcome = check(CLAIM, {"mws": [{"drop": None}]})
    assert (outcome.verdict, outcome.value, outcome.runs) == ("undefined", None, 1)
    outcome = check(CLAIM, {"mws": [{"drop": None}, {"drop": 3.0}]})
    assert (outcome.verdict, outcome.values, outcome.runs) == ("holds", (3.0,), 2)


def test_a_ratio_is_to_the_median_of_the_other_recipe():
    ratio = shorter()
    outcome = check(ratio, {"mws-c10": [{"took": 50}], "mws": [{"took": 100}, {"took": 200}, {"took": 1000}]})
    assert (outcome.verdict, outcome.value) == ("holds", 0.25)
    assert check(ratio, {"mws-c10": [{"took": 50}], "mws": [{"took": 0}]}).verdict == "undefined"


def test_nothing_takes_longer_than_what_never_ended():
    ratio = shorter("mws-c0.2", low=1.5, high=None)
    unsolved = {"seed": 0, "took": 400, "solved_at": None}
    runs = {"mws-c0.2": [{"seed": 0, "took": 1500, "solved_at": None}], "mws": [unsolved]}
    assert check(ratio, runs).verdict == "undefined"
    runs["mws"] = [{"seed": 0, "took": 400, "solved_at": 400}]
    assert check(ratio, runs).verdict == "holds"


def test_the_small_scale_may_have_another_range():
    claim = claim_of(at={"small": (0, 1)})
    found = {"mws": [{"drop": 0.5}]}
    assert (check(claim, found).verdict, check(claim, found, "small").verdict) == ("fails", "holds")


def test_claims_of_some_figures():
    assert {outcome.claim.figure for outcome in check_all(CLAIMS, {}, figures=["3", "43"])} == {"3", "43"}


def test_a_ratio_is_to_the_same_seed_where_that_was_run():
    ratio = shorter()
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
    claim = claim_of(number="plateau", low=1, high=None)
    runs = [{"plateau": 1.0, "solved_at": None}, {"plateau": 1.0, "solved_at": 300}]
    outcome = check(claim, {"mws": runs})
    assert (outcome.verdict, outcome.unsolved) == ("holds", 1)
    assert claim_data(outcome, "paper")["unsolved"] == 1
    assert "| 1, 1 – 1 (2); 1 of 2 not solved | holds |" in markdown_table([outcome], "paper")
    assert "not solved" not in markdown_table([check(claim, {"mws": runs[1:]})], "paper")


def test_claims_are_data_that_a_table_shows():
    with pytest.raises(TypeError, match="positional"):
        Claim("plateau", "2/drop", "2")
    table = claims_table(CLAIMS).set_index("id")
    drop = table.loc["2/mws/drop"]
    assert (drop["study"], drop["setup"], drop["number"]) == ("plateau", "mws", "drop")
    assert (drop["low"], drop["high"], drop["at"]) == (150, 210, "small: 80 to 300")
    assert (drop["paper"], drop["seeds"]) == ("step 170-190, in four runs 155-205", 5)
    assert table.loc["3/mws-c10/took", "setup"] == "mws-c10 / mws"
    assert "not solved" in table.loc["101/mws-frozen-attention/took", "changed"]
    assert len(table) == len(CLAIMS)
    # A source is of something that was said, and the other way round.
    assert ((table["paper"] == "") == (table["source"] == "ours")).all()


def test_a_claim_that_nothing_contradicts_is_none():
    with pytest.raises(ValueError, match="2/it: expected a range"):
        claim_of(low=None, high=None)
    with pytest.raises(ValueError, match="2/it: expected a source"):
        claim_of(paper="about 3")


def test_as_many_seeds_are_on_record_as_a_claim_says():
    seeds = on_record(STUDY).groupby("recipe")["seed"].nunique()
    missing = {claim.id for claim in CLAIMS if seeds.get(claim.recipe, 0) < claim.seeds}
    assert missing == set()
