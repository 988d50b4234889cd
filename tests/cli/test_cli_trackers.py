"""Trackers from the command line: not installed, and without a network."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

import pytest

from mechplateau.runs import list_runs
from mechplateau.training import trackers

from .tiny import TINY, command


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_a_tracker_that_is_not_installed_is_refused_before_training(run_cli, tmp_path, monkeypatch, command):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    code, out, err = run_cli(command, "mws", "--tracker", "tensorboard")
    assert (code, out) == (2, "")
    assert (
        err == "mechplateau: tracker: tensorboard is not installed; pip install 'mechplateau[tensorboard]'\n"
    )
    assert list(tmp_path.iterdir()) == []


OFFLINE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "NO_PROXY": "",
    "HOME": "/nonexistent",
    "MPLCONFIGDIR": "/tmp",
}


@pytest.fixture
def offline(monkeypatch):
    """An environment without account, key or network."""
    for name in os.environ:
        if name.startswith("WANDB"):
            monkeypatch.delenv(name)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)


TO_WANDB = ["--set", "training.steps=3", "--threads", "1", "--tracker", "wandb"]


def test_a_sweep_cut_half_way_runs_only_the_rest(run_cli, offline, tmp_path):
    """Two configurations, a tracker, no network, no account; all is killed once the first has finished."""
    arguments = ["sweep", "mws", *TINY, *TO_WANDB, "--set", "task.k=1,2", "--runs-dir", str(tmp_path)]
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        assert any(" finished" in line for line in lines)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (first,) = (run for run in list_runs(tmp_path) if run.status == "finished")
    before = (first.path / "metrics.parquet").stat().st_mtime_ns
    code, out, err = run_cli(*arguments)
    assert code == 0, out + err
    assert "1 finished, 1 skipped, 0 failed" in out
    assert (first.path / "metrics.parquet").stat().st_mtime_ns == before
    runs = list_runs(tmp_path)
    assert len(runs) == 2
    for run in runs:
        assert run.status == "finished"
        assert run.name == run.config.run_name
        assert list(run.metrics["step"]) == [0, 1, 2, 3]
    assert "0 finished, 2 skipped, 0 failed" in run_cli(*arguments)[1]


def test_a_tracker_without_network_ends_in_time_and_loses_nothing(run_cli, offline, tmp_path):
    began = time.monotonic()
    code, _, err = run_cli("train", "mws", *TINY, *TO_WANDB, "--runs-dir", str(tmp_path))
    assert code == 0, err
    assert time.monotonic() - began < 120
    (run,) = list_runs(tmp_path)
    assert list(run.metrics["step"]) == [0, 1, 2, 3]


def test_no_port_is_opened_and_none_is_needed():
    """A guard for the tests above: the proxy they point at does not answer."""
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", 9)) != 0
