"""Jobs in processes of their own, and what travels to them."""

from __future__ import annotations

import io
import os
import signal
import textwrap

import pytest

from mechplateau import measurements, tasks
from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, UserError
from mechplateau.interventions import base as interventions
from mechplateau.models import kinds
from mechplateau.runs import load_run
from mechplateau.training import executor, sweep, train
from mechplateau.training.executor import (
    Job,
    job_function,
    own_classes,
    packed,
    perform,
    register_classes,
    submit,
)

from .conftest import tiny

NOTEBOOK = """
    import torch
    from typing import Literal
    from mechplateau.measurements.base import Column, Measurement, register_measurement
    from mechplateau.interventions import AttentionScale, register_intervention
    from mechplateau.models.config import ModelConfig
    from mechplateau.models.gpt import Gpt
    from mechplateau.models.kinds import register_model_kind
    from mechplateau.tasks import register_task
    from mechplateau.tasks.mws import MovingWindowSum

    OFFSET = 1

    def moved(tokens):
        return (tokens + OFFSET) % 5

    @register_task
    class Cell(MovingWindowSum):
        name: Literal["cell"] = "cell"
        model_kinds = ("mine",)

        def _sample(self, batch, generator, device):
            return moved(super()._sample(batch, generator, device))

    class MineConfig(ModelConfig):
        kind: Literal["mine"] = "mine"

    @register_model_kind
    class Mine(Gpt):
        config_class = MineConfig

    @register_measurement
    class Largest(Measurement):
        name = "largest"
        needs = frozenset()

        def columns(self):
            return (Column("largest", "1", "largest output", "never"),)

        def measure(self, seen, batch):
            return {"largest": seen.outputs.max()}

    @register_intervention
    class Twice(AttentionScale):
        kind: Literal["twice"] = "twice"
"""


@pytest.fixture
def notebook(monkeypatch):
    """The classes of a notebook: their module is __main__, which no other process can import."""
    monkeypatch.setattr(tasks.base, "_REGISTRY", dict(tasks.base._REGISTRY))
    monkeypatch.setattr(kinds, "_REGISTRY", dict(kinds._REGISTRY))
    monkeypatch.setattr(interventions, "_REGISTRY", dict(interventions._REGISTRY))
    monkeypatch.setattr(measurements.base, "_REGISTRY", dict(measurements.base._REGISTRY))
    cell = {"__name__": "__main__"}
    exec(compile(textwrap.dedent(NOTEBOOK), "<cell>", "exec", dont_inherit=True), cell)
    return cell


def test_a_notebooks_classes_travel_and_leave_no_trace(notebook, tmp_path):
    config = tiny(interventions=[{"kind": "twice", "c": 2.0}], training={"steps": 3})
    own = {"task": {**config.task.data(), "name": "cell"}, "model": {"d_model": 8, "kind": "mine"}}
    config = RunConfig.parse({**config.data(), **own})
    config = config.with_(evaluation={"measurements": ["largest"]})
    (result,) = sweep.sweep([config], runs_dir=tmp_path / "sweep", jobs=1, threads=1, device="cpu")
    assert (result.outcome, result.message) == ("finished", "")
    alone = train(config, runs_dir=tmp_path / "alone", threads=1)
    written = {path.relative_to(alone.path) for path in alone.path.rglob("*")}
    assert {path.relative_to(result.path) for path in result.path.rglob("*")} == written
    assert alone.metrics["largest"].equals(load_run(result.path).metrics["largest"])
    for name in written:
        one, other = alone.path / name, result.path / name
        if one.is_file() and name.name not in ("environment.json", "metrics.parquet"):
            assert one.read_bytes() == other.read_bytes()


def test_what_another_process_registers(notebook, monkeypatch):
    sent = own_classes()
    monkeypatch.setattr(tasks.base, "_REGISTRY", {})
    register_classes(sent)
    assert tasks.task_class("cell") is notebook["Cell"]


def write(folder, threads, *, text):
    folder.mkdir()
    (folder / "text").write_text(f"{text} {threads}")


def refuse(folder, threads, *, text):
    print("at work")
    raise UserError(f"text: expected none,\ngot {text}")


def die(folder, threads):
    print("at work", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def functions(monkeypatch):
    monkeypatch.setattr(executor, "_FUNCTIONS", {})
    for function in (write, refuse, die):
        function.__module__ = "__main__"  # as in a notebook: tests are no package
        job_function(function.__name__)(function)


def test_every_job_is_heard_of_and_one_that_fails_stops_no_other(functions, tmp_path):
    def skip(job):
        if job.folder.name == "odd":
            raise UserError("odd: damaged")
        return job.folder.name == "done"

    jobs = [
        Job("refuse", {"text": "this"}, tmp_path / "refused"),
        Job("write", {"text": "odd"}, tmp_path / "odd"),
        Job("die", {}, tmp_path / "died"),
        Job("write", {"text": "done"}, tmp_path / "done"),
        Job("write", {"text": "new"}, tmp_path / "new", threads=2),
    ]
    heard = []
    results = submit(jobs, workers=2, finished=skip, on_result=heard.append)
    assert [(result.outcome, result.message) for result in results] == [
        ("failed", "mechplateau: text: expected none, got this"),
        ("failed", "odd: damaged"),
        ("failed", "its process was killed by signal 9 (out of memory?); its last line: at work"),
        ("skipped", ""),
        ("finished", ""),
    ]
    assert [result.job for result in results] == jobs
    assert sorted(heard, key=results.index) == results
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new/text").read_text() == "new 2"


def test_nothing_begins_where_a_function_is_unknown(functions, tmp_path):
    jobs = [Job("write", {"text": "a"}, tmp_path / "a"), Job("wipe", {}, tmp_path / "b")]
    with pytest.raises(ConfigError, match=r"job: unknown function 'wipe'; known: die, refuse, write"):
        submit(jobs, workers=1)
    with pytest.raises(ConfigError, match="workers: expected at least 1, got 0"):
        submit(jobs, workers=0)
    with pytest.raises(ConfigError, match="workers: expected a whole number, got '2'"):
        submit(jobs, workers="2")
    assert list(tmp_path.iterdir()) == []


def test_a_class_that_cannot_travel_hinders_no_other(notebook, functions, tmp_path, caplog):
    notebook["Cell"].log = (tmp_path / "log").open("w")
    with notebook["Cell"].log:
        message = packed(Job("write", {"text": "a"}, tmp_path / "a"))
    assert "Cell cannot travel to another process: " in caplog.text
    perform(io.BytesIO(message))
    assert (tmp_path / "a/text").read_text() == "a 1"
