"""Folders that are brought back from a node: whole, checked, and such that a run can be gone on from."""

from __future__ import annotations

import errno
import fcntl
import os
from functools import partial

import pytest

from mechplateau.errors import RunError
from mechplateau.training.cluster import collecting
from mechplateau.training.cluster.collecting import NotWhole, Receiver, manifest_of, names_in, snapshot
from mechplateau.training.cluster.desk import Collected, Desk
from mechplateau.training.cluster.mirror import NodeMirror, Superseded


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """So that a file is more than one."""
    monkeypatch.setattr(collecting, "PIECE", 3)
    monkeypatch.setattr("mechplateau.training.cluster.desk.PIECE", 3)


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(folder):
    return {name: (folder / name).read_text() for name in names_in(folder)}


@pytest.fixture
def desk(tmp_path):
    """Of one job, which reads a file beside its folder."""
    (tmp_path / "source").write_text("from another run")
    reads = {"runs/source": str(tmp_path / "source")}
    desk = Desk({0: Collected(str(tmp_path / "own"), True, reads)})
    yield desk
    desk.close()


@pytest.fixture
def tried(desk, tmp_path):
    """Begins a try of the job on a node."""

    mirrors = []

    def begin(attempt):
        def ask(method, *given):
            return getattr(desk, method)(0, attempt, *given)

        mirrors.append(NodeMirror(ask, "runs/own", tmp_path / "scratch" / f"try{attempt}"))
        return mirrors[-1]

    yield begin
    for mirror in mirrors:
        mirror.close()


def test_a_folder_goes_to_the_node_and_comes_back_as_it_saves(tried, tmp_path):
    own = tmp_path / "own"
    write(own, config_DOT_yaml="a: 1", resume__step1_DOT_safetensors="first save", _DOT_lock="")
    mirror = tried(1)
    assert mirror.fetch() is None
    there = tmp_path / "scratch/try1/work/runs/own"
    assert read(there) == read(own)
    assert (there.parent / "source").read_text() == "from another run"

    write(there, rows_DOT_jsonl="1", **{"_DOT_tmp-1": "not finished"})
    mirror.bring(final=False)  # nothing was saved
    assert "rows.jsonl" not in read(own)

    write(there, rows_DOT_jsonl="12", resume__step2_DOT_safetensors="second save", empty_DOT_txt="")
    (there / "resume/step1.safetensors").unlink()
    mirror.bring(final=False)
    assert read(own) == read(there)
    assert not (own / "resume/step1.safetensors").exists()

    write(there, rows_DOT_jsonl="123")
    (there / "resume/step2.safetensors").unlink()
    mirror.bring(final=True)
    assert read(own) == {"config.yaml": "a: 1", "rows.jsonl": "123", "empty.txt": ""}
    assert not (own / "resume").exists()
    assert sorted(path.name for path in own.iterdir()) == [".lock", "config.yaml", "empty.txt", "rows.jsonl"]
    mirror.close()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_was_not_sent_whole_changes_nothing(tmp_path):
    write(tmp_path, a="old", b="old")
    receiver = Receiver(tmp_path)
    node = tmp_path / ".node"
    write(node, a="new a", b="new b")
    assert receiver.offer(manifest_of(node)) == ["a", "b"]
    receiver.take("a", 0, b"new a")
    receiver.take("b", 0, b"new c")
    with pytest.raises(NotWhole, match="b: did not come whole"):
        receiver.commit()
    assert read(tmp_path) == {"a": "old", "b": "old"}
    receiver.drop()
    assert [path.name for path in tmp_path.glob(".tmp*")] == []


@pytest.mark.parametrize("full", ["put_piece", "put_in_place"])
def test_a_full_disk_is_told_with_its_folder_and_no_pieces_are_left(tried, tmp_path, monkeypatch, full):
    own = tmp_path / "own"
    write(own, a="old")
    mirror = tried(1)
    assert mirror.fetch() is None
    write(tmp_path / "scratch/try1/work/runs/own", a="new")
    written = getattr(collecting, full)

    def until_it_is_full(path, *rest):
        written(path, *rest[:1], b"n") if full == "put_piece" else None
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(collecting, full, until_it_is_full)
    with pytest.raises(RunError, match=f"^{own}: cannot be written .No space left on device.; free space"):
        mirror.bring(final=True)
    assert read(own) == {"a": "old"}
    assert sorted(path.name for path in own.iterdir()) == [".lock", "a"]


def test_what_a_run_goes_on_from_is_put_in_place_last(tmp_path, monkeypatch):
    """A driver that is killed in between leaves a folder whose newest save has all that belongs to it."""
    node = tmp_path / "node"
    write(node, resume__2_DOT_safetensors="save", state="running", checkpoints__2_DOT_safetensors="weights")
    receiver = Receiver(tmp_path / "own")
    for name in receiver.offer(manifest_of(node)):
        receiver.take(name, 0, (node / name).read_bytes())
    placed, replace = [], collecting.os.replace
    monkeypatch.setattr(
        collecting.os, "replace", lambda old, new: (placed.append(new.name), replace(old, new))
    )
    receiver.commit()
    assert placed == ["2.safetensors", "state", "2.safetensors"]
    assert read(tmp_path / "own") == read(node)
    # And is taken first: rows that are added meanwhile do no harm, rows that are missing would.
    assert names_in(node)[0] == "resume/2.safetensors"


def test_a_snapshot_stays_as_it_was(tmp_path):
    write(tmp_path / "run", rows="1", weights_DOT_safetensors="w")
    snapshot(tmp_path / "run", tmp_path / "taken")
    with (tmp_path / "run/rows").open("a") as rows:
        rows.write("2")
    assert read(tmp_path / "taken") == {"rows": "1", "weights.safetensors": "w"}


def test_only_the_last_try_counts(tried, desk, tmp_path):
    first = tried(1)
    assert first.fetch() is None
    second = tried(2)
    assert second.fetch() is None
    write(tmp_path / "scratch/try1/work/runs/own", a="of the first")
    with pytest.raises(Superseded):
        first.bring(final=True)
    assert not desk.go_on(0, 1, "")
    assert desk.go_on(0, 2, "at work")
    assert desk.last_line(0) == "at work"
    assert read(tmp_path / "own") == {}
    assert desk.stop() == [0]
    assert not desk.go_on(0, 2, "")


def test_a_folder_that_another_process_holds_is_left_alone(tried, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    with (own / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert tried(1).fetch() == f"{own}: another process is working on this run; wait for it"


def test_leftovers_of_killed_workers_are_removed_but_not_what_is_held(tried, tmp_path):
    tried(1)._lock.close()  # as when the worker and its job are gone
    tried(2)
    tried(3)
    assert sorted(path.name for path in (tmp_path / "scratch").iterdir()) == ["try2", "try3"]


def test_a_file_the_node_has_already_is_not_sent_again(tried, desk, tmp_path, monkeypatch):
    mirror = tried(1)
    monkeypatch.setattr(mirror, "_get", partial(pytest.fail, "sent again"))
    target = tmp_path / "scratch/try1/work/runs/source"
    target.parent.mkdir(parents=True)
    target.write_text("from another run")
    assert mirror.fetch() is None
