"""Run folders: round trips, strictness, phases, and errors that say what to do."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import mechplateau
from mechplateau import files
from mechplateau.cli.console import print_runs
from mechplateau.config import RunConfig
from mechplateau.errors import CheckpointError, ConfigError, RunError
from mechplateau.measurements import Column
from mechplateau.models.transformer import parameters_of
from mechplateau.report.overview import overview
from mechplateau.runs import (
    Run,
    RunWriter,
    checkpoints,
    list_runs,
    load_checkpoint,
    load_run,
    unreadable_runs,
)
from mechplateau.runs.checkpoints import read_tensors, save_tensors
from mechplateau.runs.environment import ARITHMETIC
from mechplateau.runs.phases import find_phases
from mechplateau.runs.table import compact, frame_of, read_table
from mechplateau.runs.writer import checkpoint_description
from mechplateau.signs import Signs
from mechplateau.training import RunInterrupted, train

CONFIG = RunConfig.for_task(
    "mws",
    task={"n": 4, "k": 2, "p": 7, "max_num": 6},
    model={"d_model": 8, "n_heads": 2},
    training={"steps": 6, "batch_size": 8, "lr": 1e-2},
    evaluation={"samples": 8},
    checkpoints={"every": 3},
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(CONFIG, runs_dir=tmp_path_factory.mktemp("runs")).path


@pytest.fixture
def copied(finished, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished, tmp_path / finished.name)


def test_a_checkpoint_saved_loaded_and_saved_again_has_equal_bytes(finished, tmp_path):
    run = load_run(finished)
    model = run.model(3)
    save_tensors(tmp_path / "again.safetensors", parameters_of(model), checkpoint_description(run.config, 3))
    original = finished / "checkpoints" / "step_000003.safetensors"
    assert (tmp_path / "again.safetensors").read_bytes() == original.read_bytes()


def test_a_checkpoint_describes_itself(finished):
    path = finished / "checkpoints" / "step_000003.safetensors"
    _, description = read_tensors(path)
    assert description["step"] == 3
    assert description["processed"] is False
    assert RunConfig.parse(description["config"]) == CONFIG
    model = load_checkpoint(path)
    tokens = CONFIG.task.sample(2, seed=0)[:, :-1]
    assert torch.equal(model(tokens), load_run(finished).model(3)(tokens))


def test_a_run_opens_in_a_notebooks_way(finished):
    run = mechplateau.load_run(finished)
    model = run.model("after")
    tokens = run.task.sample(8, seed=0)
    logits, cache = model.run_with_cache(tokens[:, :-1])
    assert logits.shape == (8, 8, 8)
    assert cache["pattern", 0].shape == (8, 2, 8, 8)
    assert not model.training
    assert run.steps == (0, 3, 6)
    assert list(run.metrics["step"]) == list(range(7))
    assert run.status == "finished"
    assert (run.finished, run.farthest, run.reached) == (True, 6, 6)
    assert Run.exists(finished)
    assert not Run.exists(finished.parent)
    assert set(run.maps("before")) == {"pattern.L0", "cosine.final"}
    assert run.maps("before")["pattern.L0"].shape == (2, 8, 8)


def test_columns_are_the_documented_ones(finished):
    columns = load_run(finished).metrics.columns
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


def test_undefined_is_null_in_the_file_and_nan_in_pandas(finished):
    table = pq.read_table(finished / "metrics.parquet")
    assert table["cos_out_3"].null_count == table.num_rows  # nothing comes after the last output
    assert table["loss"].null_count == 0
    assert load_run(finished).metrics["cos_out_3"].isna().all()


def test_finished_runs_keep_nothing_to_resume_from(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "config.yaml",
        "environment.json",
        "state.json",
        "metrics.parquet",
        "checkpoints",
        "maps",
        ".lock",
    }


def test_loading_is_strict(copied):
    path = copied / "checkpoints" / "step_000003.safetensors"
    tensors, description = read_tensors(path)

    def rewritten(change):
        changed = dict(tensors)
        change(changed)
        save_tensors(path, changed, description)
        with pytest.raises(CheckpointError) as caught:
            load_run(copied).model(3)
        assert "step_000003.safetensors" in str(caught.value)
        return str(caught.value)

    assert "missing blocks.0.attn.W_Q" in rewritten(lambda t: t.pop("blocks.0.attn.W_Q"))
    assert "unknown blocks.0.attn.W_X" in rewritten(lambda t: t.update({"blocks.0.attn.W_X": torch.zeros(1)}))
    assert "ln_final.w has shape [9], expected [8]" in rewritten(
        lambda t: t.update({"ln_final.w": torch.zeros(9)})
    )


@pytest.mark.parametrize("damage", ["cut", "garbage", "foreign", "future", "missing"])
def test_a_damaged_checkpoint_is_one_line(copied, damage):
    path = copied / "checkpoints" / "step_000003.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "garbage":
        path.write_bytes(b"garbage")
    elif damage == "foreign":
        save_file(load_file(path), path)
    elif damage == "future":
        tensors, description = read_tensors(path)
        save_file(tensors, path, metadata={"mechplateau": json.dumps({**description, "format": 99})})
    else:
        path.unlink()
    with pytest.raises((CheckpointError, RunError)) as caught:
        load_run(copied).model(3)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or "kept: 0, 6" in str(caught.value)


def test_a_missing_run_and_step_and_phase_are_named(finished, tmp_path):
    with pytest.raises(RunError, match="no run here"):
        load_run(tmp_path / "none")
    run = load_run(finished)
    with pytest.raises(RunError, match="no checkpoint at step 4; kept: 0, 3, 6"):
        run.model(4)
    with pytest.raises(RunError, match="expected a step, or one of before, during, after; got 'later'"):
        run.model("later")
    with pytest.raises(
        RunError, match=r"no plateau with a drop was found, so no step is during it; steps kept: 0, 3, 6"
    ):
        run.model("during")


def test_a_run_of_an_unregistered_task_is_one_clear_error(copied):
    text = (copied / "config.yaml").read_text().replace("name: mws", "name: os.system")
    (copied / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"unknown task 'os\.system'.*@register_task"):
        load_run(copied)
    assert list_runs(copied.parent) == []
    assert "unknown task 'os.system'" in unreadable_runs(copied.parent)[copied.name]


def test_phases_come_from_the_curve():
    recorded = pd.read_csv(os.path.join(os.path.dirname(__file__), "..", "data", "mws_authors_code_cpu.csv"))
    metrics = pd.DataFrame({"step": recorded["step"] + 1, "loss": recorded["train_loss"]})
    phases = find_phases(Signs(metrics), range(0, 401, 20))
    assert phases.plateau.found
    middle = (phases.plateau.onset + phases.plateau.drop) / 2
    assert abs(phases.during - middle) <= 10
    assert (phases.before, phases.after) == (0, 400)
    assert phases.step("during") == phases.during
    assert not phases.solved  # no accuracy was measured


def test_a_checkpoint_beside_the_plateau_is_not_during_it():
    recorded = pd.read_csv(os.path.join(os.path.dirname(__file__), "..", "data", "mws_authors_code_cpu.csv"))
    metrics = pd.DataFrame({"step": recorded["step"] + 1, "loss": recorded["train_loss"]})
    plateau = find_phases(Signs(metrics), [0]).plateau
    outside = (0, plateau.onset - 1, plateau.drop, 400)
    phases = find_phases(Signs(metrics), outside)
    assert phases.during is None
    with pytest.raises(
        RunError,
        match=rf"on the plateau, from step {plateau.onset} to before its drop at {plateau.drop}; .*400",
    ):
        phases.step("during")
    assert find_phases(Signs(metrics), (*outside, plateau.drop - 1)).during == plateau.drop - 1


@pytest.mark.parametrize(("top", "solved_at"), [(0.22, None), (0.95, 380), (1.0, 361), (float("nan"), None)])
def test_a_drop_is_not_yet_a_solution(top, solved_at):
    """A plateau and its drop, whose accuracy ends at `top`: found either way, solved only from 0.95 on."""
    recorded = pd.read_csv(os.path.join(os.path.dirname(__file__), "..", "data", "mws_authors_code_cpu.csv"))
    metrics = pd.DataFrame({"step": recorded["step"] + 1, "loss": recorded["train_loss"]})
    metrics["accuracy"] = [top * step / 380 if step < 380 else top for step in metrics["step"]]
    phases = find_phases(Signs(metrics), range(0, 401, 20))
    assert phases.plateau.found
    assert (phases.solved, phases.solved_at) == (solved_at is not None, solved_at)


def test_a_full_disk_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch):
    """The disk is full from the third checkpoint file on; with room again the same call goes on."""
    whole = train(CONFIG, runs_dir=tmp_path / "whole")
    sync, count = files.sync_to_disk, 0

    def full(path):
        nonlocal count
        count += path.name.startswith(".tmp") and "step_000003" in path.name
        if count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(path)

    monkeypatch.setattr(files, "sync_to_disk", full)
    with pytest.raises(
        RunError, match=r"cannot be written \(No space left on device\); free space"
    ) as caught:
        train(CONFIG, runs_dir=tmp_path / "full")
    assert "\n" not in str(caught.value)
    root = tmp_path / "full" / CONFIG.run_name
    assert not list(root.rglob(".tmp-*"))
    assert load_run(root).steps == (0,)
    monkeypatch.setattr(files, "sync_to_disk", sync)
    resumed = train(CONFIG, runs_dir=tmp_path / "full")
    pd.testing.assert_frame_equal(resumed.metrics, whole.metrics, check_exact=True)
    assert torch.equal(resumed.weights()["embed.W_E"], whole.weights()["embed.W_E"])


def test_a_full_disk_in_safetensors_own_words_is_one_line(tmp_path, monkeypatch):
    def full(*arguments, **named):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(RunError, match=r"cannot be written \(.*No space left on device"):
        train(CONFIG, runs_dir=tmp_path)
    assert load_run(tmp_path / CONFIG.run_name).steps == ()


def interrupted(tmp_path, step=4):
    """A run stopped at a step; its folder."""

    class Stop:
        def on_step(self, reached, row):
            if reached == step:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(RunInterrupted):
        train(CONFIG, runs_dir=tmp_path, listeners=[Stop()])
    return tmp_path / CONFIG.run_name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t, d: t.update({"ln_final.w": torch.ones(8, dtype=torch.float16)}),
            "is float16, expected float32",
        ),
        (lambda t, d: t["unembed.b_U"].add_(1), "b_U is not what training keeps it at"),
        (lambda t, d: d.update({"processed": True}), "were processed"),
        (lambda t, d: d["config"].update({"seed": 5}), "belongs to another run"),
    ],
)
def test_a_checkpoint_that_is_not_the_runs_is_refused(copied, change, message):
    path = copied / "checkpoints" / "step_000003.safetensors"
    tensors, description = read_tensors(path)
    change(tensors, description)
    save_tensors(path, tensors, {name: value for name, value in description.items() if name != "format"})
    with pytest.raises(CheckpointError, match=message):
        load_run(copied).model(3)


def test_what_cannot_be_opened_is_listed_with_its_reason(copied):
    (copied / "config.yaml").write_bytes(b"\xff\xfe")
    assert list_runs(copied.parent) == []
    assert "cannot be read" in unreadable_runs(copied.parent)[copied.name]
    with pytest.raises(RunError, match="cannot be read"):
        load_run(copied)


def test_a_finished_run_without_its_table_says_so(copied):
    (copied / "metrics.parquet").unlink()
    with pytest.raises(RunError, match=r"metrics\.parquet: missing"):
        _ = load_run(copied).metrics


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (pd.DataFrame({"step": [0]}), "without the column loss"),
        (pd.DataFrame({"loss": [0.1]}), "without the column step"),
        (pd.DataFrame({"step": [], "loss": []}), "without rows"),
    ],
)
def test_a_table_that_lacks_what_every_table_has_is_damaged(copied, table, what):
    table.to_parquet(copied / "metrics.parquet")
    with pytest.raises(RunError, match=rf"metrics\.parquet: damaged \({what}\)"):
        _ = load_run(copied).metrics


@pytest.mark.parametrize("record", ["[]", '{"sessions": 3}', '{"sessions": [5]}', "no json"])
def test_a_damaged_record_of_sessions_is_none(copied, record):
    (copied / "environment.json").write_text(record)
    assert load_run(copied).sessions == ()


@pytest.mark.parametrize("record", ['{"sessions": 3}', '{"sessions": [5]}'])
def test_a_run_goes_on_beside_a_damaged_record_of_sessions(tmp_path, record):
    path = interrupted(tmp_path)
    (path / "environment.json").write_text(record)
    run = train(CONFIG, runs_dir=tmp_path)
    assert run.status == "finished"
    assert len(run.sessions) == 1


def test_a_run_says_what_made_it_and_a_resume_with_another_arithmetic_says_so(tmp_path, caplog):
    path = interrupted(tmp_path)
    record = json.loads((path / "environment.json").read_text())
    assert record["sessions"][-1]["arithmetic"] == ARITHMETIC
    assert record["sessions"][-1]["packages"]["mechplateau"] == mechplateau.__version__
    # As it was recorded while there was but one.
    del record["sessions"][-1]["arithmetic"]
    (path / "environment.json").write_text(json.dumps(record))
    with RunWriter(CONFIG, tmp_path) as writer:
        reached = writer.resume_step
    run = train(CONFIG, runs_dir=tmp_path)
    assert run.status == "finished"
    said = [r.getMessage() for r in caplog.records if "arithmetic" in r.getMessage()]
    assert said == [
        f"{path}: made with arithmetic 1 up to step {reached}, goes on with {ARITHMETIC}: its numbers differ from an "
        "uninterrupted run's by rounding"
    ]
    assert [session.get("arithmetic") for session in run.sessions] == [None, ARITHMETIC]


def test_a_resume_with_the_same_arithmetic_says_nothing(tmp_path, caplog):
    interrupted(tmp_path)
    assert train(CONFIG, runs_dir=tmp_path).status == "finished"
    assert not [r for r in caplog.records if "arithmetic" in r.getMessage()]


def test_sessions_always_have_packages_and_a_status_is_a_known_one(copied):
    (copied / "environment.json").write_text('{"sessions": [{"packages": null, "threads": 1}]}')
    assert load_run(copied).sessions == ({"packages": {}, "threads": 1},)
    (copied / "state.json").write_text('{"status": ["finished"]}')
    (copied / "metrics.parquet").unlink()
    assert load_run(copied).status is None


def test_what_may_not_be_read_is_not_called_damaged(copied, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(pq, "read_table", refused)
    with pytest.raises(RunError, match=r"metrics\.parquet: cannot be read \(Permission denied\)"):
        _ = load_run(copied).metrics
    run = load_run(copied)
    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(RunError, match=r"state\.json: cannot be read \(Permission denied\)"):
        _ = run.status
    monkeypatch.setattr(Path, "is_file", refused)
    assert unreadable_runs(copied.parent)[copied.name].endswith("cannot be read (Permission denied)")


def test_an_old_file_survives_a_failed_write(tmp_path):
    path = tmp_path / "file"
    files.write_text(path, "old")

    def fail(temporary):
        temporary.write_text("half")
        raise OSError(errno.EIO, "broken")

    with pytest.raises(RunError):
        files.write_atomic(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_resume_file_falls_back_and_a_torn_row_is_dropped(tmp_path):
    with RunWriter(CONFIG, tmp_path) as writer:
        writer.begin({"threads": 1})
        for step in range(3):
            writer.append({"step": step, "loss": 1.0})
        writer.save(2, {"w": torch.ones(2)}, {}, None, keep=True)
        writer.append({"step": 3, "loss": 0.5})
        root = writer.layout.root
    with (root / "metrics.part.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    (root / "resume" / "step_000005.safetensors").write_bytes(b"torn")
    with RunWriter(CONFIG, tmp_path) as writer:
        assert writer.resume_step == 2
    assert list(load_run(root).metrics["step"]) == [0, 1, 2]


def test_a_run_in_progress_can_be_looked_at(tmp_path):
    with RunWriter(CONFIG, tmp_path) as writer:
        writer.begin({"threads": 1})
        writer.append({"step": 0, "loss": 1.0})
        run = load_run(writer.layout.root)
        assert run.status == "running"
        assert run.reached == 0
        with pytest.raises(RunError, match="no checkpoint was kept yet"):
            _ = run.phases


def test_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match="cannot be written"):
        train(CONFIG, runs_dir=tmp_path / "file")


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


def test_a_folder_that_may_not_be_read_does_not_end_the_list(finished, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished, tmp_path / "one")
    shutil.copytree(finished, tmp_path / "two")
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
