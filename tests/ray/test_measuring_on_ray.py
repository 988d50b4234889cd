"""What is measured on checkpoints, on one Ray node: equal to the bit to one process, also with folders brought back."""

from __future__ import annotations

import shutil

import pandas as pd
import pytest

pytest.importorskip("ray", reason="Ray is not installed here; `make test-ray` has an environment with it")

from mechplateau.config import RunConfig
from mechplateau.development import llc_over_run
from mechplateau.llm import SeriesConfig, analyze_series
from mechplateau.runs import load_run
from mechplateau.studies import study_named
from mechplateau.training import train
from mechplateau.training.cluster.on_ray import RayCluster
from mechplateau.training.executor import Job, submit
from mechplateau.training.loop import torch_threads

from .raylets import files_of

SETTINGS = {"n_beta": 50.0, "chains": 2, "draws": 3, "batch_size": 8, "elasticity": False}


@pytest.fixture(scope="module")
def ray():
    with RayCluster() as cluster:
        yield cluster._ray


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = RunConfig.for_task(
        "mws",
        task={"n": 5, "k": 2, "p": 7, "max_num": 6},
        model={"d_model": 8},
        training={"steps": 6, "batch_size": 8},
        checkpoints={"every": 3},
        evaluation={"samples": 8},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("runs"), threads=1)


@pytest.mark.parametrize("collect", [False, True])
def test_learning_coefficients(ray, run, tmp_path, monkeypatch, collect):
    with torch_threads(1):
        alone = llc_over_run(run, [3, 6], **SETTINGS)
    bits = {path.name: path.read_bytes() for path in run.path.glob("notes/llc-*/*.safetensors")}
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run.path, "run", ignore=shutil.ignore_patterns("notes"))
    with RayCluster(collect=collect) as cluster:
        found = llc_over_run(load_run("run"), [3, 6], **SETTINGS, executor=cluster)
    pd.testing.assert_frame_equal(found.table, alone.table)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("run/notes/llc-*/*.safetensors")} == bits
    assert not [path for path in tmp_path.glob("run/notes/**/*") if path.name.startswith(".")]


def test_what_a_figure_measures_on_checkpoints(ray, run, tmp_path):
    alone, there = (tmp_path / name / run.name for name in ("alone", "there"))
    for folder in (alone, there):
        shutil.copytree(run.path, folder, ignore=shutil.ignore_patterns("notes"))
    measure = study_named("solved").figure("1").checkpoints.measure
    table = measure(load_run(alone), "small")
    given = {"study": "solved", "figure": "1", "scale": "small"}
    with RayCluster(collect=True) as cluster:
        (result,) = submit([Job("measure_checkpoints", given, there)], workers=None, executor=cluster)
    assert (result.outcome, result.message) == ("finished", "")
    assert files_of(there) == files_of(alone)
    pd.testing.assert_frame_equal(measure(load_run(there), "small"), table)


def test_a_series_of_language_models(ray, series, tmp_path):
    given = {"config": SeriesConfig(n_tokens=3), "prompts": [[1, 2, 3], [4, 5, 6, 7]]}
    alone = analyze_series(series, **given)
    with RayCluster(collect=True) as cluster:
        there = analyze_series(series, **given, folder=tmp_path / "kept", executor=cluster)
    pd.testing.assert_frame_equal(there.table, alone.table)
    assert list(there.table["verdict"]) == ["broken", "ok"]
    assert there.examples == alone.examples
    assert [path.name for path in (tmp_path / "kept").rglob("*") if path.name.startswith(".")] == []
