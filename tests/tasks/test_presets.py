"""Presets: named settings of a task, over which what is given wins."""

from __future__ import annotations

import pytest

from mechplateau import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.tasks import task_class, task_names

EVERY = [(task, preset) for task in task_names() for preset in task_class(task).presets]


@pytest.mark.parametrize(("task", "preset"), EVERY)
def test_every_preset_is_a_run_that_keeps_its_settings(task, preset):
    data = RunConfig.for_task(task, preset=preset).data()
    for section, settings in task_class(task).presets[preset].items():
        assert {name: data[section][name] for name in settings} == settings
    assert data != RunConfig.for_task(task).data()


def test_the_small_size_of_moving_window_sums():
    config = RunConfig.for_task("mws", preset="small")
    assert (config.task.n, config.task.p, config.model.d_model) == (8, 11, 64)
    assert (config.training.batch_size, config.training.lr, config.training.steps) == (64, 1e-3, 400)
    assert config.evaluation.every == 5
    # The defaults fill in the rest, the task's own included.
    assert RunConfig.for_task("histogram", preset="small").model.n_layers == 2
    assert RunConfig.for_task("histogram", preset="small").training.clip_norm == 1.0


def test_what_is_given_wins_over_the_preset():
    config = RunConfig.for_task("mws", preset="small", task={"n": 6}, training={"steps": 7}, seed=3)
    assert (config.task.n, config.task.p) == (6, 11)
    assert (config.training.steps, config.training.batch_size, config.seed) == (7, 64, 3)


def test_an_unknown_preset_is_one_line_with_those_there_are():
    with pytest.raises(ConfigError, match=r"^preset: mws has none called 'big'; known: small; leave it out"):
        RunConfig.for_task("mws", preset="big")
    with pytest.raises(ConfigError, match=r"^preset: mws has none called \['small'\]; known: small"):
        RunConfig.for_task("mws", preset=["small"])
    with pytest.raises(ConfigError, match=r"task\.name: unknown task 'nothing'"):
        RunConfig.for_task("nothing", preset="small")
