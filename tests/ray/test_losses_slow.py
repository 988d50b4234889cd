"""What is lost on two nodes: workers, jobs in the middle of a save, a node. Runs end as they do alone, to the bit.

Minutes; run by `make test-slow`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; `make test-ray` has an environment with it")

from mechplateau.training.cluster.mirror import scratch_folder

from .raylets import (
    RUNS,
    begun,
    below,
    ended,
    files_of,
    jobs_of,
    kept,
    kill_all,
    raylet_of,
    signal_all,
    two_raylets,
    until,
)

pytestmark = pytest.mark.slow

SWEEP = ("sweep", "mws", *RUNS, "--seeds=2", "--threads=1")
OFTEN = "--set=checkpoints.every=100"
ALWAYS = ("--set=training.steps=400", "--set=checkpoints.every=1")
"""So often that a run does little but save."""


@pytest.fixture(scope="module")
def cluster():
    with two_raylets() as found:
        yield found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The runs in local processes, made once for each cadence; the folder of runs."""
    made = {}

    def of(*sizes):
        if sizes not in made:
            made[sizes] = tmp_path_factory.mktemp("alone")
            ended(begun(*SWEEP, *sizes, "--jobs=2", address=None, cwd=made[sizes]))
        return made[sizes] / "runs"

    return of


def assert_equal_to(alone, runs):
    names = sorted(path.name for path in alone.iterdir() if path.is_dir())
    assert sorted(path.name for path in runs.iterdir() if path.is_dir()) == names
    assert len(names) == 2
    for name in names:
        assert files_of(runs / name) == files_of(alone / name)


def workers(cluster):
    """Each job's process and the worker that began it."""
    found = {}
    for node in cluster.list_all_nodes():
        for job in jobs_of(raylet_of(node)):
            stat = Path(f"/proc/{job}/stat").read_text()
            found[job] = int(stat.rpartition(")")[2].split()[1])
    return found


@pytest.mark.parametrize("collect", [(), ("--collect",)])
def test_a_worker_killed_in_the_middle_of_a_run(cluster, alone, tmp_path, collect):
    command = begun(*SWEEP, OFTEN, *collect, address=cluster.address, cwd=tmp_path)
    runs = tmp_path / "runs"
    until(lambda: len([1 for path in runs.glob("*") if len(kept(path)) > 3]) == 2, command)
    worker = next(iter(workers(cluster).values()))
    os.kill(worker, signal.SIGKILL)
    out, err = ended(command)
    assert "raylet" not in out
    assert "lost (its worker died); it resumes from its last save: retry 1 of 3" in err
    assert_equal_to(alone(OFTEN), runs)
    listed, _ = ended(begun("list", address=None, cwd=tmp_path))
    assert listed.count("finished") == 2


@pytest.mark.parametrize("collect", [(), ("--collect",)])
def test_a_job_and_its_worker_killed_in_the_middle_of_a_save(cluster, alone, tmp_path, collect):
    """Three times, each in a file that is half written."""
    command = begun(*SWEEP, *ALWAYS, *collect, address=cluster.address, cwd=tmp_path)
    where = scratch_folder("x").parent if collect else tmp_path / "runs"
    seen = set()
    for _ in range(3):
        kill_all(until(lambda: _stopped_in_a_save(cluster, where, seen), command))
    _, err = ended(command)
    assert err.count("it resumes from its last save") >= 3
    assert_equal_to(alone(*ALWAYS), tmp_path / "runs")


def _stopped_in_a_save(cluster, where, seen):
    """Jobs and their workers, stopped while a file that was not seen before is half written; else they run on."""
    both = workers(cluster)
    if not both or not _half_written(where) - seen:
        return None
    signal_all(both, signal.SIGSTOP)
    found = _half_written(where) - seen
    if not found:
        signal_all(both, signal.SIGCONT)
        return None
    seen |= found
    return [*both, *both.values()]


def _half_written(where):
    return {path for folder in ("checkpoints", "resume") for path in where.glob(f"**/{folder}/.tmp-*")}


@pytest.mark.parametrize("collect", [(), ("--collect",)])
def test_a_node_that_goes_away(cluster, alone, tmp_path, collect):
    """All of it at once. Its run goes on at the other one; with --collect, only the steps since a save are lost."""
    node = next(iter(cluster.worker_nodes))
    try:
        command = begun(*SWEEP, OFTEN, *collect, address=cluster.address, cwd=tmp_path)
        (job,) = until(lambda: jobs_of(raylet_of(node)), command)
        there = Path(os.readlink(f"/proc/{job}/cwd"))
        assert (there == tmp_path) != bool(collect)
        (run,) = until(lambda: _far(there if collect else None, tmp_path, job), command)
        kill_all([raylet_of(node), *below(raylet_of(node))])
        brought = kept(tmp_path / "runs" / run.name)
        reached = kept(run)
    finally:
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
    # A save of the last two seconds may be on its way.
    assert len(brought) > 0
    assert reached[-1] - brought[-1] <= 500
    _, err = ended(command)
    assert "it resumes from its last save: retry 1 of 3" in err
    assert_equal_to(alone(OFTEN), tmp_path / "runs")


def _far(scratch, cwd, job):
    """The folder of a job that has saved a few times."""
    if scratch is not None:
        return [path for path in scratch.glob("runs/*") if len(kept(path)) > 5]
    held = [os.path.realpath(link) for link in Path(f"/proc/{job}/fd").iterdir()]
    return [path for path in cwd.glob("runs/*") if str(path / ".lock") in held and len(kept(path)) > 5]
