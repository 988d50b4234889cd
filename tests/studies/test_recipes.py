"""Recipes: valid at both scales, named once, and reused by their hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.studies import training
from mechplateau.studies.making import all_recipes, cost
from mechplateau.studies.plateau.study import STUDY
from mechplateau.studies.recipes import NotReady, checked_scale, config_of, needed, scales_of, waves
from mechplateau.studies.training import ensure, finished_runs
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


def test_recipes_differ():
    hashes = {
        name: RunConfig.parse(recipe.data(0, "paper")).content_hash()
        for name, recipe in RECIPES.items()
        if not recipe.start
    }
    # Only small runs with a reward have sizes of their own, and so something else to be compared with.
    assert hashes.pop("mws-reward0") == hashes["mws"]
    assert len(set(hashes.values())) == len(hashes)


def test_the_paper_size_is_the_papers():
    config = config_of(RECIPES, "mws", 0, "paper", Path("runs"))
    assert config == RunConfig.for_task("mws")
    assert config_of(RECIPES, "prefix", 0, "paper", Path("runs")).training.steps == 1000
    c = config_of(RECIPES, "mws-c10-from50", 0, "paper", Path("runs"))
    assert (c.interventions[0].c, c.interventions[0].start) == (10.0, 50)


def test_sources_come_first():
    assert needed(RECIPES, ("mws-init-KQ", "copy")) == ("mws", "mws-init-KQ", "copy")
    assert waves(RECIPES, ("mws-init-KQ", "copy"), [0, 1]) == (
        [("mws", 0), ("mws", 1), ("copy", 0), ("copy", 1)],
        [("mws-init-KQ", 0), ("mws-init-KQ", 1)],
    )
    # One starts from the run with the next seed.
    assert waves(RECIPES, ("mws-init-MLP-other",), [0, 1]) == (
        [("mws", 0), ("mws", 1), ("mws", 2)],
        [("mws-init-MLP-other", 0), ("mws-init-MLP-other", 1)],
    )
    assert cost(STUDY, FIGURES["5"], "paper", [0]) == (2 + 5) * 400
    assert cost(STUDY, FIGURES["5"], "paper", [0, 1]) == (3 + 2 * 5) * 400


def test_figures_of_the_paper_are_all_there():
    numbers = set(FIGURES) | set(STUDY.elsewhere)
    assert numbers == {str(number) for number in (*range(2, 44), 101, 102)}  # the last two are ours
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
    first = ensure(RECIPES, ["mws-init-MLP-other"], [1], "small", runs_dir=tmp_path, progress=heard)
    # The source is trained with seed 1, as asked, and with the next, from which it is taken.
    assert heard.counts == [("runs", done, 3) for done in (1, 2, 3)]
    assert len(heard.words) == 3
    assert all(word.endswith(" finished") for word in heard.words)
    assert [run.config.seed for run in first["mws-init-MLP-other"]] == [1]
    (kept,) = finished_runs(RECIPES, "mws", [2], "small", tmp_path).values()
    path = first["mws-init-MLP-other"][0].config.interventions[0].source
    assert path == str(kept.checkpoint_path("after"))
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")}
    ensure(RECIPES, ["mws-init-MLP-other"], [1], "small", runs_dir=tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")} == stamps
    assert set(finished_runs(RECIPES, "mws", range(4), "small", tmp_path)) == {1, 2}
    # That seed 0 has no source yet hides nothing after it. The same folder, named from elsewhere:
    monkeypatch.chdir(tmp_path)
    assert set(finished_runs(RECIPES, "mws-init-MLP-other", range(4), "small", Path("."))) == {1}


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
        UserError, match=r"missing, and mws-init-KQ starts from it; put a copy back, or delete"
    ):
        ensure(RECIPES, ["mws-init-KQ"], [0], "small", runs_dir=tmp_path)


def test_the_last_seed_has_no_next(toy, tmp_path):
    last = 2**31 - 1
    ensure(RECIPES, ["mws"], [last], "small", runs_dir=tmp_path)
    assert set(finished_runs(RECIPES, "mws", [last], "small", tmp_path)) == {last}
    assert finished_runs(RECIPES, "mws-init-MLP-other", [last], "small", tmp_path) == {}
    with pytest.raises(NotReady, match=f"expected a seed below {last}, got {last}"):
        config_of(RECIPES, "mws-init-MLP-other", last, "small", tmp_path)


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
    with pytest.raises(UserError, match=r"x: failed: it broke \(and 1 more\); run the command again"):
        ensure(RECIPES, ["mws", "copy"], [0], "small", runs_dir=tmp_path)
