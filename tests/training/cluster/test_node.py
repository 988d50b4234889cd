"""What a node does, with a shell script in the place of Python."""

from __future__ import annotations

import os
import sys

import pytest

from mechplateau.training.cluster import node
from mechplateau.training.cluster.node import MISFIT, differences, look, token_file, work

OWN = {"mechplateau": "0.1 (source aa)", "torch": "2.13.0", "python": "3.11"}


@pytest.fixture
def order(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "BEAT", 0.05)
    monkeypatch.setattr(node, "_FIT", set())
    monkeypatch.setattr(node, "versions", lambda directory: OWN)
    token_file(str(tmp_path), "token").write_text("token")
    return {
        "message": b"the job",
        "attempt": 1,
        "directory": str(tmp_path),
        "environment": {"OMP_NUM_THREADS": None, "OF_THE_DRIVER": "its own"},
        "versions": OWN,
        "folder": str(tmp_path),
        "token": "token",
    }


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Makes this shell script the job's process."""

    def script(text):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return script


def test_a_job_gets_its_message_its_place_and_the_drivers_variables(order, process, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # as Ray sets it
    process('cat > got; echo "$PWD ${OMP_NUM_THREADS-unset} $OF_THE_DRIVER"; echo; exit 3')
    assert work(order, lambda line: True) == (3, f"{os.path.realpath(tmp_path)} unset its own")
    assert (tmp_path / "got").read_bytes() == b"the job"


def test_a_job_is_asked_to_stop_and_its_last_line_was_heard(order, process):
    process('trap "echo saved; exit 130" TERM; echo at work; while :; do sleep 0.05; done')
    heard = []

    def go_on(line):
        heard.append(line)
        return "at work" not in heard

    assert work(order, go_on) == (130, "saved")
    assert heard[0] == ""
    assert "at work" in heard


def test_nothing_is_begun_where_all_are_stopped(order, process, tmp_path):
    process("touch begun")
    assert work(order, lambda line: False) == (130, "")
    assert not (tmp_path / "begun").exists()


def test_a_killed_job_says_by_which_signal(order, process):
    process("kill -9 $$")
    assert work(order, lambda line: True)[0] == -9


def test_only_a_second_try_waits_for_the_first_to_let_go_of_the_folder(order, process, tmp_path):
    process("echo in use; test -e tried && exit 0; touch tried; exit 75")
    assert work(order, lambda line: True) == (75, "in use")
    (tmp_path / "tried").unlink()
    assert work({**order, "attempt": 2}, lambda line: True) == (0, "in use")


def test_a_node_with_other_versions_or_without_the_folder_does_nothing(order, process, tmp_path, monkeypatch):
    process("touch begun")
    code, line = work({**order, "folder": str(tmp_path / "elsewhere")}, lambda line: True)
    assert code == MISFIT
    assert line.endswith(f"does not see {tmp_path / 'elsewhere'}")
    monkeypatch.setattr(node, "versions", lambda directory: {**OWN, "torch": None, "mechplateau": "0.2"})
    code, line = work(order, lambda line: True)
    assert code == MISFIT
    assert line.partition(": ")[2] == (
        "mechplateau 0.2 there and 0.1 (source aa) here, torch is missing there and 2.13.0 here; "
        "install the same on every node"
    )
    assert not (tmp_path / "begun").exists()
    assert differences(OWN, dict(OWN), "a") is None


def test_a_folder_is_known_by_what_the_driver_wrote_in_it(order, tmp_path):
    found = look(str(tmp_path), str(tmp_path), "token", "token-0")
    assert found["storage"] is None
    assert token_file(str(tmp_path), "token-0").read_text() == "token"
    for folder in ("other", "missing"):
        (tmp_path / "other").mkdir(exist_ok=True)
        assert look(str(tmp_path), str(tmp_path / folder), "token", "token-0")["storage"] == (
            "No such file or directory"
        )


def test_the_versions_are_those_of_the_process_that_works(tmp_path):
    first, second = node.versions(str(tmp_path)), node.versions("/nowhere")
    assert first == second
    assert first["mechplateau"].startswith("0.1.0 (source ")
    assert first["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
