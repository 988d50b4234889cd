"""Claims: every one holds of what it says and fails of what it denies, and says which number it means."""

from __future__ import annotations

from functools import cache

import pytest

from mechplateau.config import RunConfig
from mechplateau.signs import partial
from mechplateau.studies.claims import OURS, Change, Claim, check, check_all, claims_table
from mechplateau.studies.claims_told import claims_page
from mechplateau.studies.making import claim_data
from mechplateau.studies.missing import asked_for
from mechplateau.studies.plateau.claims import CLAIMS
from mechplateau.studies.plateau.claims._said import THE_PAPER, THEIR_CODE
from mechplateau.studies.plateau.study import STUDY
from mechplateau.studies.plateau.summary import summarize
from mechplateau.studies.results import on_record

from .stories import PROBED, STORIES

SCALES = ("paper", "small")


@pytest.fixture(autouse=True)
def known_entropy(monkeypatch):
    """Of sixteen values as often as each other, without drawing 65,536 sequences for each story."""
    monkeypatch.setattr(partial, "entropy_of", lambda task, outputs: 2.77)


@cache
def numbers(story, recipe):
    """What a study reads off a story, were it a run of this recipe."""
    task = RunConfig.parse(STUDY.recipes[recipe].data(0, "paper")).task
    # The other way round in one story.
    probed = {
        **PROBED,
        **(
            {
                "probe_plateau": 0.9,
                "probe_end": 0.1,
                "probe_shuffled": 0.9,
                "probe_selectivity": 0.8,
                "probe_linear_end": 0.9,
                "probe_linear_neurons_end": 0.1,
            }
            if story == "late"
            else {}
        ),
    }
    return {**summarize(STORIES[story](), task), **probed}


def verdicts(claim, scale):
    """Of every story; of a ratio, with every story to compare with."""
    bases = STORIES if claim.over else ("as claimed",)
    for story in STORIES:
        for base in bases:
            runs = {claim.recipe: [numbers(story, claim.recipe)] * claim.seeds}
            if claim.over:
                runs[claim.over] = [numbers(base, claim.over)]
            yield (story, base), check(claim, runs, scale)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_is_contradicted_by_some_story(claim):
    """Beyond each of its bounds; and some other story bears it out."""
    for scale in SCALES:
        found = dict(verdicts(claim, scale))
        low, high = claim.range(scale)
        told = [outcome.value for outcome in found.values() if outcome.verdict == "fails"]
        assert low is None or any(value < low for value in told), (
            f"{claim.id}: nothing below {low}: add a story"
        )
        assert high is None or any(value > high for value in told), (
            f"{claim.id}: nothing above {high}: add a story"
        )
        assert any(outcome.verdict == "holds" for outcome in found.values()), (
            f"{claim.id}: no story bears it out"
        )


EARLY = {"entropy_plateau_share", "entropy_late_share", "cos_plateau", "cos_late", "alpha_wrong", "cos_start"}
LATE = {
    "partial_lead",
    "repetition_peak_share",
    "cos_learned",
    "counts_lead",
    "counts_all_lead",
    "alpha_wrong",
}
LATE |= {"apm_gain", "apm_plateau_gain", "apm_falls_back", "partial_at"}


@pytest.mark.parametrize(("story", "contradicted"), [("at the start", EARLY), ("late", LATE)])
def test_what_comes_too_early_or_too_late_bears_out_no_claim(story, contradicted):
    """A moment at the initialization is no plateau's sign, and what comes with the drop was not there before it."""
    looked_at = [claim for claim in CLAIMS if claim.number in contradicted]
    assert {claim.number for claim in looked_at} == contradicted
    for claim in looked_at:
        runs = {claim.recipe: [numbers(story, claim.recipe)] * claim.seeds}
        assert check(claim, runs).verdict in ("fails", "undefined"), claim.id


def test_an_effect_is_none_where_nothing_differs():
    """A run like the one that it is compared to bears out no claim of an effect."""
    same = set()
    for claim in CLAIMS:
        if claim.over:
            runs = {name: [numbers("as claimed", name)] * claim.seeds for name in (claim.recipe, claim.over)}
            if check(claim, runs).verdict != "fails":
                same.add(claim.id)
    assert same == {
        "5/mws-init-MLP/took",
        "5/mws-init-MLP/repetition_peak",
        "5/mws-init-MLP-own/took",
        "5/mws-init-embeddings/took",
    }


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


def test_half_of_the_runs_must_lie_in_the_range_as_well():
    two = [{"drop": 3.6}, {"drop": 2.9}]
    assert check(CLAIM, {"mws": two}).verdict == "holds"  # their median is 3.25, and one of two is in it
    assert check(CLAIM, {"mws": [*two, {"drop": None}]}).verdict == "fails"
    scattered = check(CLAIM, {"mws": [{"drop": 1.0}, {"drop": 3.0}, {"drop": 9.0}]})
    assert (scattered.value, scattered.inside, scattered.verdict) == (3.0, 1, "fails")


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
    assert "| 1 (1 – 1); 1 of 2 not solved | 2 of 2 | holds |" in claims_page(STUDY, [outcome])
    assert "not solved" not in claims_page(STUDY, [check(claim, {"mws": runs[1:]})])


def test_claims_are_data_that_a_table_shows():
    with pytest.raises(TypeError, match="positional"):
        Claim("plateau", "2/drop", "2")
    table = claims_table(CLAIMS).set_index("id")
    drop = table.loc["2/mws/drop"]
    assert (drop["study"], drop["setup"], drop["number"]) == ("plateau", "mws", "drop")
    assert (drop["low"], drop["high"], drop["at"]) == (150, 210, "small: 80 to 300")
    assert (drop["paper"], drop["seeds"]) == ("step 192", 5)
    assert table.loc["3/mws-c10/took", "setup"] == "mws-c10 / mws"
    assert "not solved" in table.loc["101/mws-frozen-attention/took", "changed"]
    assert len(table) == len(CLAIMS)
    # A source is of something that was said, and the other way round; and it says which of the two.
    assert ((table["paper"] == "") == (table["source"] == OURS)).all()
    assert set(table["source"]) == {THE_PAPER, THEIR_CODE, OURS}


def test_a_claim_that_nothing_contradicts_is_none():
    with pytest.raises(ValueError, match="2/it: expected a range"):
        claim_of(low=None, high=None)
    with pytest.raises(ValueError, match="2/it: expected a source"):
        claim_of(paper="about 3")


def test_fewer_seeds_than_asked_for_decide_nothing():
    claim = claim_of(seeds=3)
    runs = [{"seed": seed, "drop": drop} for seed, drop in enumerate((3.0, 9.0, 3.0))]
    found = [check(claim, {"mws": runs[:count]}) for count in (1, 2, 3)]
    assert [outcome.verdict for outcome in found] == ["holds so far", "fails so far", "holds"]
    assert [(outcome.inside, outcome.runs) for outcome in found] == [(1, 1), (1, 2), (2, 3)]
    with pytest.raises(ValueError, match="2/it: expected at least one seed, got 0"):
        claim_of(seeds=0)


def test_what_most_seeds_lack_is_undefined():
    runs = [{"drop": 3.0}, {"drop": None}, {"drop": None}]
    assert (check(CLAIM, {"mws": runs}).verdict, check(CLAIM, {"mws": runs[:2]}).verdict) == (
        "undefined",
        "holds",
    )


def test_a_number_that_came_after_the_record_was_not_run():
    """An old line without it says nothing of it; an old line that has it counts."""
    old = {"old_definition": 1.0, "drop": None}
    assert check(CLAIM, {"mws": [old]}).verdict == "not yet run"
    assert check(CLAIM, {"mws": [old, {"drop": 3.0}]}).runs == 1
    assert check(CLAIM, {"mws": [{**old, "drop": 3.0}]}).old == 1


def test_changes_are_told_with_what_was_there_before():
    change = Change(after=1, was="at most 4", because="it was 5")
    assert str(change) == "changed after 1 run, because it was 5; was: at most 4"
    claim = claim_of(changes=(change, Change(after=2, was="at most 6", because="that was no reason")))
    told = claims_table([claim]).loc[0, "changed"]
    assert told == f"{change}; changed after 2 runs, because that was no reason; was: at most 6"
    assert claim_data(check(claim, {}), "paper")["changed"] == list(map(str, claim.changes))


def test_the_history_of_the_table_is_told():
    """What was loosened or redefined once runs had been seen stays visible."""
    by_id = {claim.id: claim for claim in CLAIMS}
    assert [change.was for change in by_id["3/mws-c10/took"].changes][-2:] == [
        "at most 0.75",
        "at most 0.95, with 0.75 in a row of its own",
    ]
    for claim in CLAIMS:
        words = str(claim.changes)
        assert ("half-way to the drop, at least 1.2" in words) == (claim.number == "apm_plateau_gain"), (
            claim.id
        )
        assert ("a tenth of its first value" in words) == claim.number.startswith("partial_"), claim.id
        assert ("half-way from its first" in words) == (claim.number == "took"), claim.id
    assert "13/permutation/count_check_peak" in STUDY.retired
    # Rows that were written once runs of their set-up had been seen.
    late = {id for id, claim in by_id.items() if "no such row" in str(claim.changes)}
    assert late >= {
        *(
            "2/mws/repetition_peak_share",
            "2/mws/cos_start",
            "2/mws/apm_falls_back",
            "4/mws-c0.2/repetition_lasted",
        ),
        *(
            "5/mws-init-KQ/repetition_peak",
            "5/mws-init-KQOV/repetition_peak",
            "5/mws-init-MLP/repetition_peak",
        ),
        *(f"5/mws-init-embeddings/{number}" for number in ("plateau", "took", "cos_peak")),
        *(f"20/mws-probe/probe_{number}" for number in ("selectivity", "linear_end", "linear_neurons_end")),
        *("102/mws-reward0.1/took", "102/mws-reward1/took"),
    }
    assert not set(STUDY.retired) & set(by_id)


def test_no_seed_is_on_record_that_no_claim_asked_for():
    """Seeds are 0 to as many as were written down before: none is left out, none added until a verdict turns."""
    asked = asked_for(STUDY)
    # At the paper's size it is mws, whose five seeds stood there under both names.
    asked["mws-reward0"] = asked["mws"]
    for name, seeds in on_record(STUDY).groupby("recipe")["seed"]:
        assert set(seeds) <= set(range(asked[name])), name
