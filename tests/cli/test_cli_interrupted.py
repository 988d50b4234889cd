"""Ctrl-C, SIGTERM and SIGKILL: one line, and the same command resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from mechplateau import cli
from mechplateau.runs import list_runs
from mechplateau.runs.checkpoints import read_tensors

from .tiny import TINY, command


def test_ctrl_c_while_libraries_are_loaded_is_one_line(tmp_path):
    """Some of them swallow KeyboardInterrupt, or die of it with words of their own."""
    (tmp_path / "pydantic.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    for _ in range(1000): pass\n"
        "except BaseException:\n    pass\n"
        "raise SystemError('a library of its own mind')\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        command("config", "mws"),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mechplateau: interrupted\n")


def test_ctrl_c_anywhere_else_is_one_line(run_cli, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.runs, "_data", stopped)
    code, _, err = run_cli("config", "mws")
    assert (code, err) == (130, "mechplateau: interrupted\n")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_stopped_alone_takes_its_runs_with_it(tmp_path, how):
    """What a time limit or a job scheduler does; the same command then runs what is left, without a failure."""
    arguments = [
        "sweep",
        "mws",
        *TINY,
        "--set",
        "training.steps=1000000",
        "--threads",
        "1",
        "--runs-dir",
        str(tmp_path),
    ]
    arguments += ["--set", "checkpoints.every=50", "--set", "evaluation.every=10"]
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/checkpoints/step_000050.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(how)
    process.wait(timeout=60)
    (run,) = list_runs(tmp_path)
    while run.status != "interrupted":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path):
    arguments = [
        "train",
        "mws",
        *TINY,
        "--set",
        "training.steps=4000",
        "--set",
        "evaluation.every=5",
        "--threads",
        "1",
    ]
    arguments += ["--runs-dir", str(tmp_path)]
    process = subprocess.Popen(
        command(*arguments), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/checkpoints/step_000200.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "rerun the same command to resume" in err
    assert "mechplateau: interrupted\n" not in err  # said once, with where it was saved
    (run,) = list_runs(tmp_path)
    assert run.status == "interrupted"
    stopped = run.reached
    assert 200 <= stopped < 4000
    (state,) = (run.path / "resume").iterdir()
    assert read_tensors(state)[1]["step"] >= stopped
