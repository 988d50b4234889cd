"""Recipes: valid at both scales, named once, and reused by their hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.studies import training
from mechplateau.studies.making import all_recipes, cost
from mechplateau.studies.plateau.study import STUDY
from mechplateau.studies.recipes import (
    NotReady,
    Recipe,
    checked_scale,
    config_of,
    needed,
    scales_of,
    trains_like,
    waves,
)
from mechplateau.studies.study import Study
from mechplateau.studies.training import ensure, finished_runs
from mechplateau.training.optimizers import learning_rate
from mechplateau.training.sweep import SweepResult

RECIPES, FIGURES, SCALES = STUDY.recipes, STUDY.figures, ("paper", "small")


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_is_a_valid_run(name, tmp_path):
    recipe = RECIPES[name]
    for scale in SCALES:
        if recipe.start:
            assert recipe.start.recipe in RECIPES
            with pytest.raises(
                NotReady, match=r"seed 0 starts from the finished run of mws with seed [01]; train"
            ):
                config_of(RECIPES, name, 0, scale, tmp_path)
        else:
            config = config_of(RECIPES, name, 3, scale, tmp_path)
            assert (config.task.name, config.seed) == (recipe.task, 3)
        assert recipe.steps(scale) >= 100


def test_recipes_that_train_the_same_say_so():
    """Equal but for what is measured and kept: then a row each would be one run, counted twice."""
    same = {name: trains_like(recipe) for name, recipe in RECIPES.items() if recipe.start is None}
    first = {}
    for name, training_part in same.items():
        assert (
            RECIPES[name].same_as == first.setdefault(training_part, name) or first[training_part] == name
        ), name
    assert {name: recipe.same_as for name, recipe in RECIPES.items() if recipe.same_as} == {
        "mws-probe": "mws",
        "mws-locations": "mws",
        "mws-reward0": "mws",
    }
    with pytest.raises(ValueError, match="toy: recipe b: no recipe 'c'"):
        Study(
            name="toy",
            title="",
            recipes=[Recipe("b", "copy", "", same_as="c")],
            figures=(),
            claims=(),
            numbers=lambda run, scale: {},
        )


def test_every_set_up_is_the_authors_or_says_why_not():
    assert all(recipe.setup for recipe in RECIPES.values())
    assert RECIPES["mws-init-KQ"].setup == "as the authors"
    assert RECIPES["mws-init-KQ"].start.seed_offset == 1
    assert RECIPES["mws-init-KQ-own"].setup.startswith(
        "ours, because the parts go back into the initialization"
    )
    # So does what their scripts measure otherwise, which their settings do not show.
    for name in (
        "prefix-no-repeat",
        "addition-plain",
        "permutation-2",
        "mws-k3",
        "mws-layers2",
        "mws-locations-2",
    ):
        assert "the authors' script" in RECIPES[name].setup, name
    # What is measured less often or ended early is never the authors'.
    for recipe in RECIPES.values():
        changed = recipe.settings.get("evaluation", {}).get("every", 1) > 1
        changed |= "stop_past_solved" in recipe.settings.get("training", {})
        assert not (changed and recipe.setup == "as the authors"), recipe.name
    with pytest.raises(
        ValueError, match="recipe x: setup: expected 'as the authors' or 'ours, because ' with"
    ):
        Recipe("x", "copy", "copies", setup="almost theirs")


def test_schedules_and_muon_are_the_authors():
    cosine = RunConfig.parse(RECIPES["mws-warmup-cosine"].data(0, "paper")).training
    assert (cosine.steps, cosine.warmup_steps, cosine.stop_past_solved) == (400, 200, None)
    assert learning_rate(cosine, 400) == pytest.approx(0)
    warm = RunConfig.parse(RECIPES["mws-warmup"].data(0, "paper")).training
    assert [learning_rate(warm, step) == learning_rate(cosine, step) for step in (100, 200, 300)] == [
        True,
        True,
        False,
    ]
    muon = RunConfig.parse(RECIPES["mws-muon"].data(0, "paper")).training
    assert (muon.betas, muon.eps, muon.muon_ln_final, muon.muon_lr) == ((0.9, 0.95), 1e-10, False, 0.02)
    sgd = RunConfig.parse(RECIPES["mws-sgd-authors"].data(0, "paper")).training
    assert (sgd.optimizer, sgd.lr, sgd.steps) == ("sgd", 1e-4, 400)


def test_the_paper_size_is_the_papers():
    config = config_of(RECIPES, "mws", 0, "paper", Path("runs"))
    assert config == RunConfig.for_task("mws")
    assert config_of(RECIPES, "prefix", 0, "paper", Path("runs")).training.steps == 1000
    c = config_of(RECIPES, "mws-c10-from50", 0, "paper", Path("runs"))
    assert (c.interventions[0].c, c.interventions[0].start) == (10.0, 50)


def test_sources_come_first():
    assert needed(RECIPES, ("mws-init-KQ-own", "copy")) == ("mws", "mws-init-KQ-own", "copy")
    assert waves(RECIPES, ("mws-init-KQ-own", "copy"), [0, 1]) == (
        [("mws", 0), ("mws", 1), ("copy", 0), ("copy", 1)],
        [("mws-init-KQ-own", 0), ("mws-init-KQ-own", 1)],
    )
    # One starts from the run with the next seed.
    assert waves(RECIPES, ("mws-init-MLP",), [0, 1]) == (
        [("mws", 0), ("mws", 1), ("mws", 2)],
        [("mws-init-MLP", 0), ("mws-init-MLP", 1)],
    )
    assert cost(STUDY, FIGURES["5"], "paper", [0]) == (2 + 8) * 400
    assert cost(STUDY, FIGURES["5"], "paper", [0, 1]) == (3 + 2 * 8) * 400


def test_figures_of_the_paper_are_all_there():
    numbers = set(FIGURES) | set(STUDY.elsewhere)
    assert numbers == {str(number) for number in (*range(2, 44), 101, 102, 104)}  # the last three are ours
    assert set(all_recipes(STUDY)) == set(RECIPES)
    for number in STUDY.elsewhere:
        with pytest.raises(UserError, match=r"run `mechplateau llm"):
            STUDY.figure(number)
    with pytest.raises(UserError, match="figure 1: expected one of 2, 3"):
        STUDY.figure("1")


def test_scales_are_the_papers_and_the_presets():
    assert scales_of(RECIPES.values()) == ("paper", "small")
    assert scales_of([]) == ("paper",)
    with pytest.raises(UserError, match="scale: expected paper or small, got 'x'"):
        checked_scale("x", RECIPES.values())
    with pytest.raises(UserError, match="scale: expected paper, got 'x'"):
        checked_scale("x", [])


def test_finished_runs_are_reused(toy, tmp_path, monkeypatch, heard):
    first = ensure(RECIPES, ["mws-init-MLP"], [1], "small", runs_dir=tmp_path, progress=heard)
    # The source is trained with seed 1, as asked, and with the next, from which it is taken.
    assert heard.counts == [("runs", done, 3) for done in (1, 2, 3)]
    assert len(heard.words) == 3
    assert all(word.endswith(" finished") for word in heard.words)
    assert [run.config.seed for run in first["mws-init-MLP"]] == [1]
    (kept,) = finished_runs(RECIPES, "mws", [2], "small", tmp_path).values()
    path = first["mws-init-MLP"][0].config.interventions[0].source
    assert path == str(kept.checkpoint_path("after"))
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")}
    ensure(RECIPES, ["mws-init-MLP"], [1], "small", runs_dir=tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")} == stamps
    assert set(finished_runs(RECIPES, "mws", range(4), "small", tmp_path)) == {1, 2}
    # That seed 0 has no source yet hides nothing after it. The same folder, named from elsewhere:
    monkeypatch.chdir(tmp_path)
    assert set(finished_runs(RECIPES, "mws-init-MLP", range(4), "small", Path("."))) == {1}


def test_recipes_that_are_the_same_run_train_it_once(toy, tmp_path, heard):
    """Two processes would be in each other's way."""
    runs = ensure(RECIPES, ["mws", "mws-reward0"], [0], "paper", runs_dir=tmp_path, jobs=2, progress=heard)
    assert heard.counts == [("runs", 1, 1)]
    assert runs["mws-reward0"][0].path == runs["mws"][0].path


def test_a_source_without_its_last_checkpoint_is_no_source(toy, tmp_path):
    (run,) = ensure(RECIPES, ["mws"], [0], "small", runs_dir=tmp_path)["mws"]
    run.checkpoint_path("after").unlink()
    assert len(run.steps) > 1
    with pytest.raises(
        UserError, match=r"missing, and mws-init-KQ-own starts from it; put a copy back, or delete"
    ):
        ensure(RECIPES, ["mws-init-KQ-own"], [0], "small", runs_dir=tmp_path)


def test_the_last_seed_has_no_next(toy, tmp_path):
    last = 2**31 - 1
    ensure(RECIPES, ["mws"], [last], "small", runs_dir=tmp_path)
    assert set(finished_runs(RECIPES, "mws", [last], "small", tmp_path)) == {last}
    assert finished_runs(RECIPES, "mws-init-MLP", [last], "small", tmp_path) == {}
    with pytest.raises(NotReady, match=f"expected a seed below {last}, got {last}"):
        config_of(RECIPES, "mws-init-MLP", last, "small", tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace("seed: 0", "seed: 5"), "config.yaml is of another run than the folder's"),
        (lambda text: "colour: red\n", r"copy-\w+: cannot be read \(.*colour: unknown field"),
        (lambda text: "", r"copy-\w+: cannot be read \(.*expected a mapping of fields"),
    ],
)
def test_a_finished_run_is_that_of_its_name(toy, tmp_path, spoil, message):
    (run,) = ensure(RECIPES, ["copy"], [0], "small", runs_dir=tmp_path)["copy"]
    config = run.path / "config.yaml"
    config.write_text(spoil(config.read_text()))
    with pytest.raises(UserError, match=f"{message}.*delete the folder to train it again"):
        finished_runs(RECIPES, "copy", [0], "small", tmp_path)


def test_a_failed_run_is_one_line(toy, tmp_path, monkeypatch):
    def failing(configs, on_result, **_):
        return [SweepResult(config, tmp_path / "x", "failed", "it broke") for config in configs]

    monkeypatch.setattr(training, "sweep", failing)
    with pytest.raises(
        UserError, match=r"x: failed: it broke \(and 1 more\); rerun the same command to resume"
    ):
        ensure(RECIPES, ["mws", "copy"], [0], "small", runs_dir=tmp_path)
