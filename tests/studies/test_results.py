"""Results on record: written, merged, read again, and checked."""

from __future__ import annotations

import pandas as pd
import pytest

from mechplateau.errors import UserError
from mechplateau.studies.claims import check_all
from mechplateau.studies.plateau.study import STUDY
from mechplateau.studies.recipes import config_of
from mechplateau.studies.results import (
    found_in,
    merged,
    on_record,
    read_results,
    summaries_of,
    write_results,
)
from mechplateau.studies.training import ensure

RECIPES = STUDY.recipes


def test_runs_become_lines(toy, tmp_path):
    runs = ensure(RECIPES, ["copy", "mws-init-KQ-own"], [0, 1], "small", runs_dir=tmp_path)
    table = found_in(STUDY, tmp_path, "small", range(3))
    # At the toy size some recipes are the same run, which then stands for each of them.
    table = table[table["recipe"].isin(["mws", "mws-init-KQ-own", "copy"])]
    assert list(zip(table["recipe"], table["seed"], strict=True)) == [
        (name, seed) for name in ("mws", "mws-init-KQ-own", "copy") for seed in (0, 1)
    ]
    line = table[(table["recipe"] == "copy") & (table["seed"] == 1)].iloc[0]
    assert line["config_hash"] == runs["copy"][1].config.content_hash()
    assert line["loss_end"] == pytest.approx(runs["copy"][1].metrics["loss"].iloc[-1], rel=1e-5)
    assert line["torch"]

    path = tmp_path / "runs.csv"
    write_results(table, path)
    again = pd.read_csv(path)
    assert summaries_of(again, "small").keys() == {"copy", "mws", "mws-init-KQ-own"}
    for name, several in summaries_of(table, "small").items():
        for one, other in zip(several, summaries_of(again, "small")[name], strict=True):
            for number, value in one.items():
                assert other.get(number) == (None if value is None else pytest.approx(value, rel=1e-5)), (
                    number
                )


def test_a_new_line_replaces_an_old_one():
    old = pd.DataFrame(
        {"recipe": ["mws", "copy"], "seed": [0, 0], "scale": ["paper"] * 2, "drop": [1.0, 2.0]}
    )
    new = pd.DataFrame({"recipe": ["mws", "mws"], "seed": [0, 1], "scale": ["paper"] * 2, "drop": [9.0, 3.0]})
    for frame in (old, new):
        for column in (
            "config_hash",
            "mechplateau",
            "torch",
            "transformer-lens",
            "processor",
            "threads",
            "finished",
        ):
            frame[column] = "x"
    both = merged(RECIPES, old, new)
    assert list(zip(both["recipe"], both["seed"], both["drop"], strict=True)) == [
        ("mws", 0, 9.0),
        ("mws", 1, 3.0),
        ("copy", 0, 2.0),
    ]
    assert merged(RECIPES, old, new.iloc[:0]) is old


def test_what_is_on_record_is_known_and_at_the_papers_size():
    table = on_record(STUDY)
    assert set(table["recipe"]) <= set(RECIPES)
    assert set(table["scale"]) == {"paper"}
    assert not table.duplicated(["recipe", "seed", "scale"]).any()
    assert (table["config_hash"].str.len() == 12).all()
    outcomes = check_all(STUDY.claims, summaries_of(table, "paper"))
    assert any(outcome.verdict == "holds" for outcome in outcomes)


def test_the_record_is_of_the_recipes_as_they_are(tmp_path):
    """A recipe that was changed after its run is noticed (those that start from a run depend on its weights)."""
    for line in on_record(STUDY).to_dict("records"):
        recipe = RECIPES[line["recipe"]]
        if recipe.start is None:
            config = config_of(RECIPES, recipe.name, int(line["seed"]), "paper", tmp_path)
            assert config.content_hash() == line["config_hash"], line["recipe"]


def test_another_table_is_refused():
    with pytest.raises(UserError, match="expected the columns recipe, seed, scale, got a"):
        summaries_of(pd.DataFrame({"a": [1]}), "paper")


def test_text_stays_the_text_it_was(tmp_path):
    """Commas, quotes and letters of any alphabet; a hash or version that looks like a number."""
    line = dict.fromkeys(("config_hash", "mechplateau", "torch", "transformer-lens", "processor", "finished"))
    line |= {"recipe": "copy", "seed": 12, "scale": "paper", "threads": None, "drop": 0.5, "onset": None}
    line |= {"config_hash": "00123456789e", "torch": "2.10", "processor": 'Ä "9", 2 cores'}
    table = pd.DataFrame([line, {**line, "recipe": "mws", "config_hash": "001234567890"}])
    for frame in (table, table.iloc[1:]):
        write_results(frame, tmp_path / "runs.csv")
        again = read_results(tmp_path / "runs.csv")
        for name in ("config_hash", "torch", "processor"):
            assert again[name].tolist() == frame[name].tolist()
    assert summaries_of(again, "paper") == {"mws": [{"seed": 12, "drop": 0.5, "onset": None}]}


def test_every_seed_of_a_folder_is_found_whatever_its_record_says(toy, tmp_path):
    run = ensure(RECIPES, ["copy"], [0, 12], "small", runs_dir=tmp_path)["copy"][0]
    (run.path / "environment.json").write_text('{"sessions": {"1": 2}}')
    table = found_in(STUDY, tmp_path, "small")
    assert table["seed"].tolist() == [0, 12]
    assert table["torch"].isna().tolist() == [True, False]
