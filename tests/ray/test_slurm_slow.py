"""The template for Slurm, with a scheduler that only pretends: its two nodes are two raylets on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; `make test-ray` has an environment with it")

from mechplateau.runs import load_run

from .raylets import RUNS, ended, kept, until

TEMPLATE = Path(__file__).parents[2] / "docs/slurm/mechplateau.sbatch"
PRETENDED = {
    "scontrol": 'printf "one\\ntwo\\n"',
    # Drops Slurm's own options; a node is a process here, and has one address.
    "srun": 'while [ "${1#-}" != "$1" ]; do [ "$1" = -w ] && shift; shift; done; exec "$@"',
    "ray": f'exec {sys.executable} -m ray.scripts.scripts "$@"',
    "python": f'exec {sys.executable} "$@"',
    "mechplateau": f'exec {sys.executable} -m mechplateau "$@"',
}


def test_the_template_is_a_script_that_bash_reads():
    subprocess.run(["bash", "-n", str(TEMPLATE)], check=True)
    lines = TEMPLATE.read_text().splitlines()
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    # Slurm reads no options after the first command.
    assert max(options) < next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    # Nor does a step have the job's CPUs by itself.
    starts = [line for line in lines if line.lstrip().startswith("srun")]
    assert len(starts) == 2
    assert all('--cpus-per-task="$cpus"' in line for line in starts)


@pytest.fixture
def environment(tmp_path):
    """Of a job with two nodes."""
    import ray

    programs = tmp_path / "bin"
    programs.mkdir()
    own = {"hostname": f"echo {ray.util.get_node_ip_address()}"}  # Ray takes 127.0.0.1 for this too
    for name, text in (PRETENDED | own).items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "two[1-2]",
        "SLURM_CPUS_PER_TASK": "1",
        "RAY_PORT": "6399",
        "HOME": str(tmp_path),
    }


def runs_in(folder):
    return [load_run(path) for path in sorted((folder / "runs").iterdir()) if path.is_dir()]


@pytest.mark.slow
def test_it_runs_a_sweep_on_two_nodes_and_stops_them(environment, tmp_path):
    words = ["sweep", "mws", *RUNS, "--set=training.steps=100", "--seeds=2", "--threads=1"]
    done = subprocess.run(
        ["bash", str(TEMPLATE), *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    assert "2 finished, 0 skipped, 0 failed" in done.stdout
    assert [run.finished for run in runs_in(tmp_path)] == [True, True]
    again = subprocess.run(["bash", str(TEMPLATE)], env=environment, capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr.startswith("usage: sbatch mechplateau.sbatch COMMAND")


@pytest.mark.slow
def test_before_the_time_is_over_every_run_saves_and_stops(environment, tmp_path):
    """Slurm sends SIGINT to the script alone."""
    endless = ("--set=training.steps=1000000", "--set=checkpoints.every=100", "--seeds=2", "--threads=1")
    script = subprocess.Popen(
        ["bash", str(TEMPLATE), "sweep", "mws", *RUNS, *endless],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as Slurm begins it
    )
    until(lambda: len([1 for path in tmp_path.glob("runs/*") if len(kept(path)) > 2]) == 2, script)
    script.send_signal(signal.SIGINT)
    ended(script, code=130, timeout=180)
    found = runs_in(tmp_path)
    assert [run.status for run in found] == ["interrupted"] * 2
    assert all(kept(run.path, "resume")[-1] == run.farthest for run in found)
