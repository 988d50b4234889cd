"""Two Ray nodes on this machine, commands that use them, and what runs there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

TASK = "task={name: mws, n: 4, k: 2, p: 7, max_num: 6}"
STEPS = 2000
RUNS = (
    f"--set={TASK}",
    "--set=model.d_model=8",
    "--set=training.batch_size=8",
    f"--set=training.steps={STEPS}",
    "--set=evaluation={samples: 8, every: 50}",
)
"""A run of some seconds."""


@contextmanager
def two_raylets():
    """A head with one CPU and another node with one; gives the cluster and its address."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def raylet_of(node):
    """Its process number."""
    (found,) = node.all_processes["raylet"]
    return found.process.pid


def parents():
    """Process → its parent, of all that live."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                found[int(entry.name)] = int(parent)
    return found


def below(pid):
    """All processes that a process began, and they in turn."""
    tree = parents()
    found = [child for child, parent in tree.items() if parent == pid]
    for child in list(found):
        found += below(child)
    return found


def jobs_of(pid):
    """Processes of jobs among those."""
    found = []
    for one in below(pid):
        try:
            words = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[1:4] == [b"-m", b"mechplateau", b"job"]:
            found.append(one)
    return found


def kill_all(pids):
    """At once, as when the power goes: first they are stopped, so that none can do anything about another's end."""
    signal_all(pids, signal.SIGSTOP)
    signal_all(pids, signal.SIGKILL)


def signal_all(pids, number):
    """To all of them that still live."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def begun(*words, address, cwd, python=("-m", "mechplateau")):
    """A command that works on the cluster, or locally where the address is None."""
    ray = () if address is None else ("--executor", "ray", "--address", address)
    return subprocess.Popen(
        [sys.executable, *python, *words, *ray],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process, code=0, timeout=1200):
    """What it printed, on both."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == code, (out, err)
    return out, err


def until(what, process=None, seconds=600):
    """Wait for something, and give it back."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, what
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


def kept(folder, name="checkpoints"):
    """Steps of the files of a run, in order."""
    return sorted(
        int(path.stem.removeprefix("step_")) for path in Path(folder).glob(f"{name}/step_*.safetensors")
    )


def files_of(folder):
    """What must be equal to the bit, wherever a run was made."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file() and path.name not in ("environment.json", ".lock")
    }
