"""The one way to write a file, to hold a folder, and to read tensors."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import mechplateau
from mechplateau import files
from mechplateau.errors import CheckpointError, RunError
from mechplateau.files import leftovers, take_lock, write_atomic, write_text
from mechplateau.llm.weights import _read_pickle
from mechplateau.models.safe_files import load_tensors

PACKAGE = Path(mechplateau.__file__).parent


def test_a_link_is_written_through(tmp_path):
    """A run's file that is a link to another disk stays one, a chain and one that leads nowhere yet too."""
    (tmp_path / "disk").mkdir()
    real, link, chain = tmp_path / "disk" / "state.json", tmp_path / "state.json", tmp_path / "chain"
    link.symlink_to(real)
    chain.symlink_to(link)
    write_text(link, "first")
    assert real.read_text() == "first"
    write_text(chain, "second")
    assert link.is_symlink()
    assert chain.is_symlink()
    assert real.read_text() == "second"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["chain", "disk", "state.json", "state.json"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_and_a_device_are_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join()
    assert read == ["through"]
    assert pipe.is_fifo()
    write_text(Path(os.devnull), "nothing")
    assert not Path(os.devnull).is_file()


def test_permissions_stay_and_a_folder_is_refused(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")
    path.chmod(0o640)
    write_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    with pytest.raises(RunError, match="is a folder; expected the name of a file"):
        write_text(tmp_path, "text")
    long = tmp_path / ("n" * 251 + ".txt")  # as long as a name may be
    write_text(long, "text")
    assert long.read_text() == "text"


def test_tensors_may_be_read_by_whoever_may_read_the_rest(tmp_path):
    """safetensors makes its files the owner's alone."""
    text, tensors = tmp_path / "text", tmp_path / "tensors"
    write_text(text, "new")
    write_atomic(tensors, lambda temporary: save_file({"w": torch.ones(2)}, temporary))
    assert text.stat().st_mode == tensors.stat().st_mode


def test_what_kills_leave_is_found(tmp_path):
    for name in (".tmp-12-ab-step_000001.safetensors", ".tmp7fbEw0", ".tmpfiles", "step_000001.safetensors"):
        (tmp_path / name).touch()
    assert sorted(path.name for path in leftovers(tmp_path)) == [
        ".tmp-12-ab-step_000001.safetensors",
        ".tmp7fbEw0",
    ]


def test_what_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_text(path, "old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("sync_to_disk", "os.replace"):
        with monkeypatch.context() as patched:
            patched.setattr(f"mechplateau.files.{name}", full)
            with pytest.raises(RunError, match=r"file: cannot be written \(No space left on device\)"):
                write_text(path, "new")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / ".lock"
    held = take_lock(path)
    if held is None:
        pytest.skip("this system has no such locks")
    code = "import sys; from pathlib import Path; from mechplateau.files import take_lock; take_lock(Path(sys.argv[1]))"
    other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert "BlockingIOError" in other.stderr
    with pytest.raises(BlockingIOError):
        take_lock(path, patience=0.01)
    held.close()
    again = take_lock(path)
    assert again is not None
    again.close()


@pytest.mark.skipif(files.fcntl is None, reason="needs fcntl")
def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    """For runs and for the demonstration alike."""
    from mechplateau.llm.demo import _alone

    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", none)
    with _alone(tmp_path):
        pass
    assert "this file system has no locks" in caplog.text


class Runs:
    """A pickle that runs code."""

    def __init__(self, sentinel: Path):
        self.sentinel = sentinel

    def __reduce__(self):
        return (Path.touch, (self.sentinel,))


def test_both_readers_of_others_files_are_the_same(tmp_path):
    """Tensors and plain values, never code, and one message; NumPy scalars beside the tensors are plain values."""
    import numpy as np

    whole, evil, sentinel = tmp_path / "whole.pt", tmp_path / "evil.pt", tmp_path / "ran"
    torch.save({"model": {"w": torch.ones(2)}, "loss": np.float64(0.5)}, whole)
    assert load_tensors(whole)["w"].tolist() == [1.0, 1.0]
    torch.save({"w": torch.ones(2), "code": Runs(sentinel)}, evil)
    said = set()
    for read in (load_tensors, lambda path: list(_read_pickle(path))):
        with pytest.raises(CheckpointError, match="refused, since loading it could run code") as caught:
            read(evil)
        said.add(str(caught.value))
    assert len(said) == 1
    assert not sentinel.exists()


@pytest.mark.parametrize("cut", [0, 4, 40])
def test_a_damaged_file_of_tensors_is_one_line(tmp_path, cut):
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.ones(8)}, path, {"key": "text"})
    with files.open_safetensors(path) as (_, header):
        assert header == {"key": "text"}
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(
        CheckpointError, match=r"w\.safetensors: damaged, or not a safetensors file \(.+\)"
    ) as caught:
        list(files.read_tensors(path))
    assert "\n" not in str(caught.value)


def test_there_is_no_second_copy():
    """What opens tensors, renames into place or locks is in one module."""
    once = {"safe_open", "flock", "fsync", "replace", "load"}
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            base, _, last = name.rpartition(".")
            if (
                last in once
                and base in ("", "os", "torch", "fcntl", "safetensors")
                and name not in ("load", "replace")
            ):
                found.append((path.relative_to(PACKAGE).as_posix(), name))
    assert {where for where, _ in found} == {"files.py"}
    assert {name for _, name in found} == {"safe_open", "fcntl.flock", "os.fsync", "os.replace", "torch.load"}
