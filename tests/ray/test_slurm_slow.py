"""The template for Slurm, with a scheduler that only pretends: its two nodes are two raylets on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; `make test-ray` has an environment with it")

from mechplateau.runs import load_run

from .raylets import RUNS

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


@pytest.mark.slow
def test_it_runs_a_sweep_on_two_nodes_and_stops_them(tmp_path):
    import ray

    programs = tmp_path / "bin"
    programs.mkdir()
    own = {"hostname": f"echo {ray.util.get_node_ip_address()}"}  # Ray takes 127.0.0.1 for this too
    for name, text in (PRETENDED | own).items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "two[1-2]",
        "SLURM_CPUS_PER_TASK": "1",
        "RAY_PORT": "6399",
        "HOME": str(tmp_path),
    }
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
    runs = [path for path in sorted((tmp_path / "runs").iterdir()) if path.is_dir()]
    assert [load_run(path).finished for path in runs] == [True, True]
    again = subprocess.run(["bash", str(TEMPLATE)], env=environment, capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr.startswith("usage: sbatch mechplateau.sbatch COMMAND")
