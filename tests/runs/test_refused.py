"""Single files of a run that are damaged or are not the run's: one line that names the file."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from mechplateau.errors import CheckpointError, RunError
from mechplateau.runs import (
    list_runs,
    load_run,
    unreadable_runs,
)
from mechplateau.runs.checkpoints import read_tensors, save_tensors


def test_loading_is_strict(finished):
    path = finished / "checkpoints" / "step_000002.safetensors"
    tensors, description = read_tensors(path)

    def rewritten(change):
        changed = dict(tensors)
        change(changed)
        save_tensors(path, changed, description)
        with pytest.raises(CheckpointError) as caught:
            load_run(finished).model(2)
        assert "step_000002.safetensors" in str(caught.value)
        return str(caught.value)

    assert "missing blocks.0.attn.W_Q" in rewritten(lambda t: t.pop("blocks.0.attn.W_Q"))
    assert "unknown blocks.0.attn.W_X" in rewritten(lambda t: t.update({"blocks.0.attn.W_X": torch.zeros(1)}))
    assert "ln_final.w has shape [9], expected [8]" in rewritten(
        lambda t: t.update({"ln_final.w": torch.zeros(9)})
    )


@pytest.mark.parametrize("damage", ["cut", "garbage", "foreign", "future", "missing"])
def test_a_damaged_checkpoint_is_one_line(finished, damage):
    path = finished / "checkpoints" / "step_000002.safetensors"
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
        load_run(finished).model(2)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or "kept: 0, 4, 6" in str(caught.value)


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
def test_a_checkpoint_that_is_not_the_runs_is_refused(finished, change, message):
    path = finished / "checkpoints" / "step_000002.safetensors"
    tensors, description = read_tensors(path)
    change(tensors, description)
    save_tensors(path, tensors, {name: value for name, value in description.items() if name != "format"})
    with pytest.raises(CheckpointError, match=message):
        load_run(finished).model(2)


def test_what_cannot_be_opened_is_listed_with_its_reason(finished):
    (finished / "config.yaml").write_bytes(b"\xff\xfe")
    assert list_runs(finished.parent) == []
    assert "cannot be read" in unreadable_runs(finished.parent)[finished.name]
    with pytest.raises(RunError, match="cannot be read"):
        load_run(finished)


def test_a_finished_run_without_its_table_says_so(finished):
    (finished / "metrics.parquet").unlink()
    with pytest.raises(RunError, match=r"metrics\.parquet: missing"):
        _ = load_run(finished).metrics


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (pd.DataFrame({"step": [0]}), "without the column loss"),
        (pd.DataFrame({"loss": [0.1]}), "without the column step"),
        (pd.DataFrame({"step": [], "loss": []}), "without rows"),
    ],
)
def test_a_table_that_lacks_what_every_table_has_is_damaged(finished, table, what):
    table.to_parquet(finished / "metrics.parquet")
    with pytest.raises(RunError, match=rf"metrics\.parquet: damaged \({what}\)"):
        _ = load_run(finished).metrics


def test_what_may_not_be_read_is_not_called_damaged(finished, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(pq, "read_table", refused)
    with pytest.raises(RunError, match=r"metrics\.parquet: cannot be read \(Permission denied\)"):
        _ = load_run(finished).metrics
    run = load_run(finished)
    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(RunError, match=r"state\.json: cannot be read \(Permission denied\)"):
        _ = run.status
    monkeypatch.setattr(Path, "is_file", refused)
    assert unreadable_runs(finished.parent)[finished.name].endswith("cannot be read (Permission denied)")
