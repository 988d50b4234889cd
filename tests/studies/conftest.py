"""Every recipe at a toy size, trained in this process: parts of a second each."""

from __future__ import annotations

import pytest

from mechplateau.studies import recipes, training
from mechplateau.training import train
from mechplateau.training.sweep import SweepResult

TOY_TASKS = {
    "mws": {"n": 4, "k": 2, "p": 7, "max_num": 6},
    "prefix": {"n": 4, "p": 7, "max_num": 6},
    "addition": {"digits": 1},
    "histogram": {"n": 4, "alphabet": 3},
    "permutation": {"n": 3},
    "copy": {"n": 4, "max_num": 5},
    "reverse": {"n": 4, "max_num": 5},
    "repeat": {"n": 4, "p": 7},
    "concat_mws": {"p": 7, "max_num": 6},
}
TOY_STEPS = 12


def shrunk(data):
    """A recipe's data at a toy size; what is special about it stays."""
    task = {**data["task"], **TOY_TASKS[data["task"]["name"]]}
    if task.get("sep"):
        task = {**task, "max_num": 5, "sep": 6}
    training_part = {**data.get("training", {}), "steps": TOY_STEPS, "batch_size": 8, "warmup_steps": 4}
    interventions = [{**i, "start": min(i.get("start", 0), 6)} for i in data.get("interventions", ())]
    return {
        **data,
        "task": task,
        "model": {**data.get("model", {}), "d_model": 8},
        "training": training_part,
        "evaluation": {**data.get("evaluation", {}), "every": 3, "samples": 4},
        "checkpoints": {"every": 6},
        "interventions": interventions,
    }


def in_process(configs, *, runs_dir, jobs, threads, device, on_result, **_):
    results = []
    for config in configs:
        run = train(config, runs_dir=runs_dir, device=device)
        results.append(SweepResult(config, run.path, "finished"))
        on_result(results[-1])
    return results


@pytest.fixture
def toy(monkeypatch):
    original = recipes.Recipe.data
    monkeypatch.setattr(recipes.Recipe, "data", lambda self, seed, scale: shrunk(original(self, seed, scale)))
    monkeypatch.setattr(training, "sweep", in_process)
