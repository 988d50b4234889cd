"""A full disk, a failed write, a torn one: one line, and the old file is still there."""

from __future__ import annotations

import errno
import os

import pandas as pd
import pytest
import torch
from safetensors import SafetensorError

from mechplateau import files
from mechplateau.errors import ConfigError, RunError
from mechplateau.runs import (
    RunWriter,
    checkpoints,
    load_run,
)
from mechplateau.runs.notes import Notes
from mechplateau.training import train

from .tiny import CONFIG


def test_a_full_disk_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch):
    """The disk is full from the third checkpoint file on; with room again the same call goes on."""
    whole = train(CONFIG, runs_dir=tmp_path / "whole")
    sync, count = files.sync_to_disk, 0

    def full(path):
        nonlocal count
        count += path.name.startswith(".tmp") and "step_000002" in path.name
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
    assert not list(root.rglob(".tmp*"))
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


def test_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match="cannot be written"):
        train(CONFIG, runs_dir=tmp_path / "file")


@pytest.mark.parametrize("kind", ["../elsewhere", "a/b", ""])
def test_notes_lie_in_the_runs_folder(tmp_path, kind):
    with pytest.raises(ConfigError, match=r"^kind: expected letters"):
        Notes(tmp_path, kind, {}, "0123456789ab")
