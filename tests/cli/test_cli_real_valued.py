"""Every command that takes a task or a run, on a task whose tokens are real numbers."""

from __future__ import annotations

import re
from pathlib import Path

from mechplateau import cli
from mechplateau.studies import recipes, training
from mechplateau.tasks import task_names
from mechplateau.training import sweep
from tests.studies.conftest import in_process

TASK = "in_context_regression"
SETTINGS = {
    "task.d": 2, "task.n_pairs": 3, "model.d_model": 8, "model.n_heads": 2, "training.batch_size": 8,
    "training.steps": 4, "checkpoints.every": 2, "evaluation.samples": 8,
}  # fmt: skip
SET = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]


def tiny(recipe, seed, scale):
    data = {"task": {"name": TASK}, "seed": seed}
    for name, value in SETTINGS.items():
        section, field = name.split(".")
        data.setdefault(section, {})[field] = value
    return data


def test_every_command_on_real_valued_tokens(run_cli, monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "sweep", lambda configs, **how: in_process(configs, **how))
    monkeypatch.setattr(training, "sweep", in_process)
    monkeypatch.setattr(recipes.Recipe, "data", tiny)

    def call(*arguments):
        code, out, err = run_cli(*arguments)
        assert (code, "Traceback" in err) == (0, False), err
        return out

    assert "name: in_context_regression" in call("config", TASK, *SET)
    assert "| ridge_gap |" in call("columns", TASK, *SET)
    (run,) = call("train", TASK, *SET, "--quiet", "--threads", "1").split()
    assert Path(run).name in call("show", run)
    assert "Comparison: " in call("sweep", TASK, *SET, "--seeds", "2", "--jobs", "1")
    runs = [path.name for path in (tmp_path / "runs").glob(f"{TASK}-*")]
    assert len(runs) == 2
    assert all(name in call("show", *runs) for name in runs)
    assert call("list", "--task", TASK, "--csv").count(TASK) >= 2
    call("report", run, "-o", "one.html")
    assert "Stages" in (tmp_path / "one.html").read_text(encoding="utf-8")
    chains = ("--chains", "2", "--draws", "2", "--batch-size", "8", "--n-beta", "50", "--steps", "0,4")
    assert "trivial loss 2.1" in call("llc", run, *chains, "--out", "llc.png")
    assert call("stages", run, "--column", "ridge_gap").startswith("ridge_gap: None (")
    assert "stages-D.1.png" in call("figure", "stages/D.1", "--jobs", "1")
    assert "ridge_gap_off_5050 of lr-5050" in call("claims", "stages", "--runs-dir", "runs")


def test_no_command_knows_a_real_valued_task_or_its_model():
    known = {TASK, "InContextRegression", "regressor", "MatrixCompletion"}
    assert TASK in task_names()
    for file in Path(cli.__file__).parent.glob("*.py"):
        words = set(re.findall(r"\w+", file.read_text(encoding="utf-8")))
        assert not words & known, file.name
