"""Run folders: what is in them, and how a run is opened."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import mechplateau
from mechplateau.cli.console import print_runs
from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, RunError
from mechplateau.measurements import Column
from mechplateau.models.transformer import parameters_of
from mechplateau.report.overview import overview
from mechplateau.runs import (
    Run,
    RunWriter,
    list_runs,
    load_checkpoint,
    load_run,
    unreadable_runs,
)
from mechplateau.runs.checkpoints import read_tensors, save_tensors
from mechplateau.runs.table import compact, frame_of, read_table
from mechplateau.runs.writer import checkpoint_description
from mechplateau.training import train

from .tiny import CONFIG


def test_a_checkpoint_saved_loaded_and_saved_again_has_equal_bytes(finished_once, tmp_path):
    run = load_run(finished_once)
    model = run.model(2)
    save_tensors(tmp_path / "again.safetensors", parameters_of(model), checkpoint_description(run.config, 2))
    original = finished_once / "checkpoints" / "step_000002.safetensors"
    assert (tmp_path / "again.safetensors").read_bytes() == original.read_bytes()


def test_a_checkpoint_describes_itself(finished_once):
    path = finished_once / "checkpoints" / "step_000002.safetensors"
    _, description = read_tensors(path)
    assert description["step"] == 2
    assert description["processed"] is False
    assert RunConfig.parse(description["config"]) == CONFIG
    model = load_checkpoint(path)
    tokens = CONFIG.task.sample(2, seed=0)[:, :-1]
    assert torch.equal(model(tokens), load_run(finished_once).model(2)(tokens))


def test_a_run_opens_in_a_notebooks_way(finished_once):
    run = mechplateau.load_run(finished_once)
    model = run.model("after")
    tokens = run.task.sample(8, seed=0)
    logits, cache = model.run_with_cache(tokens[:, :-1])
    assert logits.shape == (8, 8, 8)
    assert cache["pattern", 0].shape == (8, 2, 8, 8)
    assert not model.training
    assert run.steps == (0, 2, 4, 6)
    assert list(run.metrics["step"]) == list(range(7))
    assert run.status == "finished"
    assert (run.finished, run.farthest, run.reached) == (True, 6, 6)
    assert Run.exists(finished_once)
    assert not Run.exists(finished_once.parent)
    assert set(run.maps("before")) == {"pattern.L0", "cosine.final"}
    assert run.maps("before")["pattern.L0"].shape == (2, 8, 8)


def test_columns_are_the_documented_ones(finished_once):
    columns = load_run(finished_once).metrics.columns
    assert list(columns) == [column.name for column in CONFIG.columns]
    assert list(columns) == [
        "step",
        "loss",
        "accuracy",
        *(f"accuracy_out_{r}" for r in range(4)),
        *(f"loss_out_{r}" for r in range(4)),
        "repetition",
        "repetition_data",
        "entropy",
        "entropy_data",
        "alpha_1",
        "apm_window",
        "apm_zero_count",
        "cos_final",
        *(f"cos_out_{r}" for r in range(4)),
    ]


def test_undefined_is_null_in_the_file_and_nan_in_pandas(finished_once):
    table = pq.read_table(finished_once / "metrics.parquet")
    assert table["cos_out_3"].null_count == table.num_rows  # nothing comes after the last output
    assert table["loss"].null_count == 0
    assert load_run(finished_once).metrics["cos_out_3"].isna().all()


def test_finished_runs_keep_nothing_to_resume_from(finished_once):
    names = {path.name for path in finished_once.iterdir()}
    assert names == {
        "config.yaml",
        "environment.json",
        "state.json",
        "metrics.parquet",
        "checkpoints",
        "maps",
        ".lock",
    }


def test_a_missing_run_and_step_and_phase_are_named(finished_once, tmp_path):
    with pytest.raises(RunError, match="no run here"):
        load_run(tmp_path / "none")
    run = load_run(finished_once)
    with pytest.raises(RunError, match="no checkpoint at step 3; kept: 0, 2, 4, 6"):
        run.model(3)
    with pytest.raises(RunError, match="expected a step, or one of before, during, after; got 'later'"):
        run.model("later")
    with pytest.raises(
        RunError, match=r"no plateau with a drop was found, so no step is during it; steps kept: 0, 2, 4, 6"
    ):
        run.model("during")


def test_a_run_of_an_unregistered_task_is_one_clear_error(finished):
    text = (finished / "config.yaml").read_text().replace("name: mws", "name: os.system")
    (finished / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"unknown task 'os\.system'.*@register_task"):
        load_run(finished)
    assert list_runs(finished.parent) == []
    assert "unknown task 'os.system'" in unreadable_runs(finished.parent)[finished.name]


def test_a_run_in_progress_can_be_looked_at(tmp_path):
    with RunWriter(CONFIG, tmp_path) as writer:
        writer.begin({"threads": 1})
        writer.append({"step": 0, "loss": 1.0})
        run = load_run(writer.layout.root)
        assert run.status == "running"
        assert run.reached == 0
        with pytest.raises(RunError, match="no checkpoint was kept yet"):
            _ = run.phases


def test_a_column_that_comes_later_is_kept(tmp_path):
    rows = [{"step": 0, "loss": 1.0}, {"step": 1, "late": 0.5, "loss": 0.9}, {"step": 2, "apm_zero_count": 3}]
    columns = [Column("apm_zero_count", "sequences", "sequences without attention", dtype="int64")]
    compact(tmp_path / "metrics.parquet", rows, "abc", columns)
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.to_pydict() == {
        "step": [0, 1, 2],
        "loss": [1.0, 0.9, None],
        "late": [None, 0.5, None],
        "apm_zero_count": [None, None, 3],
    }
    assert read_table(tmp_path / "metrics.parquet", "abc")["late"].tolist()[1] == 0.5
    assert list(frame_of(rows, columns).columns) == table.column_names


@pytest.mark.parametrize("name", ["a:b", "file:x", "s3:x", "~/runs", "~nobody-of-this-name", "x y", "%41"])
def test_any_folder_name_works_from_beginning_to_end(tmp_path, monkeypatch, name):
    """Some of them are addresses to pyarrow; `~` is the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run = train(CONFIG, runs_dir=name)
    assert run.metrics["step"].tolist() == list(range(7))
    expected = tmp_path / "home" / "runs" if name == "~/runs" else tmp_path / name
    assert run.path.resolve() == (expected / CONFIG.run_name).resolve()
    assert load_run(f"{name}/{CONFIG.run_name}").reached == 6
    assert [found.reached for found in list_runs(name)] == [6]
    assert unreadable_runs(name) == {}
    assert load_checkpoint(f"{name}/{CONFIG.run_name}/checkpoints/step_000006.safetensors") is not None
    assert train(CONFIG, runs_dir=name).path == run.path


def test_an_empty_path_is_one_line():
    with pytest.raises(mechplateau.UserError, match="expected a path, got ''"):
        train(CONFIG, runs_dir="")


def test_a_folder_that_may_not_be_read_does_not_end_the_list(finished_once, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished_once, tmp_path / "one")
    shutil.copytree(finished_once, tmp_path / "two")
    iterdir = Path.iterdir

    def refused(path):
        if path == tmp_path / "one" / "checkpoints":
            raise PermissionError(errno.EACCES, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    damaged = unreadable_runs(tmp_path)
    table = overview(list_runs(tmp_path), unreadable=lambda run, why: damaged.update({run.name: why}))
    print_runs(table, damaged, "no runs")
    out = capsys.readouterr().out
    assert list(table["run"]) == ["two"]
    assert "6/6" in out
    assert "checkpoints: cannot be read (Permission denied)" in " ".join(out.split())
