"""What becomes of runs on two nodes when the command that began them ends, and what is refused there.

Minutes; run by `make test-slow`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from importlib import metadata

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; `make test-ray` has an environment with it")

from mechplateau.runs import load_run

from .raylets import RUNS, begun, ended, files_of, jobs_of, kept, raylet_of, two_raylets, until

pytestmark = pytest.mark.slow

SWEEP = ("sweep", "mws", *RUNS, "--set=checkpoints.every=100", "--seeds=2", "--threads=1")


@pytest.fixture(scope="module")
def cluster():
    with two_raylets() as found:
        yield found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The runs in local processes."""
    folder = tmp_path_factory.mktemp("alone")
    ended(begun(*SWEEP, "--jobs=2", address=None, cwd=folder))
    return folder / "runs"


def jobs(cluster):
    return [job for node in cluster.list_all_nodes() for job in jobs_of(raylet_of(node))]


def far(runs):
    """Whether both runs have saved a few times."""
    return len([1 for path in runs.glob("*") if len(kept(path)) > 3]) == 2


def assert_equal_to(alone, runs):
    folders = sorted(path.name for path in alone.iterdir() if path.is_dir())
    assert sorted(path.name for path in runs.iterdir() if path.is_dir()) == folders
    for name in folders:
        assert files_of(runs / name) == files_of(alone / name)


@pytest.mark.parametrize("collect", [(), ("--collect",)])
def test_interrupted_and_given_again(cluster, alone, tmp_path, collect):
    runs = tmp_path / "runs"
    command = begun(*SWEEP, *collect, address=cluster.address, cwd=tmp_path)
    until(lambda: far(runs), command)
    command.send_signal(signal.SIGINT)
    _, err = ended(command, code=130, timeout=60)
    assert err.endswith("mechplateau: interrupted\n")
    assert jobs(cluster) == []
    found = [load_run(path) for path in runs.glob("mws-*")]
    assert [run.status for run in found] == ["interrupted"] * 2
    # The step that it stopped at was saved, not the last one that is kept.
    assert all(kept(run.path, "resume")[-1] == run.farthest > 300 for run in found)
    ended(begun(*SWEEP, *collect, address=cluster.address, cwd=tmp_path))
    assert_equal_to(alone, runs)


@pytest.mark.parametrize("collect", [(), ("--collect",)])
def test_a_command_that_is_killed_leaves_nothing_running(cluster, alone, tmp_path, collect):
    runs = tmp_path / "runs"
    command = begun(*SWEEP, *collect, address=cluster.address, cwd=tmp_path)
    until(lambda: far(runs), command)
    command.kill()
    command.communicate()
    until(lambda: not jobs(cluster), seconds=60)  # Ray ends them, as kill -9 would: nothing is saved any more
    ended(begun(*SWEEP, *collect, address=cluster.address, cwd=tmp_path))
    assert [path.name for path in runs.iterdir() if path.name.startswith(".")] == []
    assert_equal_to(alone, runs)


def test_a_run_that_another_command_works_on_is_named(cluster, tmp_path):
    endless = (*SWEEP, "--set=training.steps=1000000")
    first = begun(*endless, address=cluster.address, cwd=tmp_path)
    until(lambda: far(tmp_path / "runs"), first)
    second = begun(*endless, "--jobs=2", address=None, cwd=tmp_path)
    out, err = ended(second, code=1)
    assert (out + err).count("another process is") == 2
    first.send_signal(signal.SIGINT)
    ended(first, code=130)


SCRIPT = """
import json, sys
from pathlib import Path
from typing import Literal
from mechplateau.config import RunConfig
from mechplateau.tasks import register_task
from mechplateau.tasks.mws import MovingWindowSum
from mechplateau.training.cluster.on_ray import RayCluster
from mechplateau.training.sweep import sweep

OFFSET = 1

@register_task
class Cell(MovingWindowSum):
    name: Literal["cell"] = "cell"
    fails: bool = False
    def _sample(self, batch, generator, device):
        if self.fails and batch == 8:  # not while its configuration is checked
            print("about to fail")
            raise OSError("no such text")
        return (super()._sample(batch, generator, device) + OFFSET) % 5

def run(seed, fails=False):
    return RunConfig.parse({
        "task": {"name": "cell", "n": 4, "k": 2, "p": 7, "max_num": 6, "fails": fails},
        "model": {"d_model": 8}, "training": {"steps": 40, "batch_size": 8},
        "evaluation": {"samples": 8}, "checkpoints": {"every": 20}, "seed": seed,
    })

given = {"jobs": None, "threads": 1, "device": "cpu"}
if sys.argv[1:]:
    with RayCluster(sys.argv[1], collect=sys.argv[2] == "collect", retries=3) as cluster:
        found = sweep([run(0, True), run(0), run(1), run(2)], runs_dir="ray", executor=cluster, **given)
else:
    found = sweep([run(0), run(1), run(2)], runs_dir="local", **given)
print(json.dumps([[str(one.path), one.outcome, one.message, one.tries] for one in found]))
"""


@pytest.mark.parametrize("collect", ["shared", "collect"])
def test_a_notebooks_task_travels_and_its_own_fault_is_not_retried(cluster, tmp_path, collect):
    def scripted(*words):
        command = [sys.executable, "-c", SCRIPT, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (_, outcome, message, tries), *others = scripted(cluster.address, collect)
    assert (outcome, tries) == ("failed", 1)
    assert message.endswith("no such text")
    for path, outcome, _, _ in others:
        assert outcome == "finished"
        # Not opened: this process does not know the task.
        assert json.loads((tmp_path / path / "state.json").read_text())["status"] == "finished"
    for (path, *_), (local, *_) in zip(others, scripted(), strict=True):
        assert files_of(tmp_path / path) == files_of(tmp_path / local)


def test_a_node_with_another_version_is_named(cluster, tmp_path):
    other = tmp_path / "other"
    (other / "torch-9.9.dist-info").mkdir(parents=True)
    text = "Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n"
    (other / "torch-9.9.dist-info" / "METADATA").write_text(text)
    path = f"{other}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    node = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": path})
    cluster.wait_for_nodes()
    try:
        for collect in ((), ("--collect",)):
            command = begun(*SWEEP, *collect, address=cluster.address, cwd=tmp_path)
            _, err = ended(command, code=2)
            assert err.startswith("mechplateau: node ")
            assert f"torch 9.9 there and {metadata.version('torch')} here; install the same" in err
            assert err.count("\n") == 1
            assert list(tmp_path.glob("runs/*")) == []
    finally:
        cluster.remove_node(node)


def test_a_node_that_does_not_see_the_folder(cluster, tmp_path):
    """It has a disk of its own there: --collect works, and says so."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    raylet = (
        f"mount -t tmpfs none {hidden} && exec {sys.executable} -m ray.scripts.scripts start --block "
        f"--address {cluster.address} --num-cpus 1"
    )
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"]).returncode:
        pytest.skip("this machine gives no process a disk of its own")
    node = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", raylet], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        import ray

        with_three = "import ray, sys, time; ray.init(sys.argv[1], log_to_driver=False)\n"
        with_three += "while sum(one['Alive'] for one in ray.nodes()) < 3: time.sleep(0.2)"
        subprocess.run([sys.executable, "-c", with_three, cluster.address], check=True, timeout=60)
        assert not ray.is_initialized()
        few = ("--set=training.steps=40", "--seeds=3")
        command = begun(*SWEEP, *few, address=cluster.address, cwd=hidden)
        _, err = ended(command, code=2)
        assert f"does not see {hidden / 'runs'} (" in err
        assert err.endswith("use a folder that all nodes see, or --collect\n")
        ended(begun(*SWEEP, *few, "--collect", address=cluster.address, cwd=hidden))
        found = [load_run(path) for path in sorted(hidden.glob("runs/*")) if path.is_dir()]
        assert [run.finished for run in found] == [True] * 3
    finally:
        node.terminate()
        node.communicate(timeout=30)


def test_a_cluster_that_asks_for_a_token(tmp_path):
    """Its first node uses one that it finds at home; the command, which has an address, must find it too."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
    home = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    home["HOME"] = str(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    start = (sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port", port)
    head = subprocess.Popen(
        [*start, "--num-cpus=1", "--include-dashboard=false"],
        env=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: (line := head.stdout.readline()) and "Ray runtime started" in line, head)
        words = (
            *SWEEP,
            "--set=training.steps=40",
            "--seeds=1",
            "--executor=ray",
            f"--address=127.0.0.1:{port}",
        )
        done = subprocess.run(
            [sys.executable, "-m", "mechplateau", *words],
            env=home,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert "1 finished, 0 skipped, 0 failed" in done.stdout
        assert "InvalidAuthToken" not in done.stderr
    finally:
        head.terminate()
        head.communicate(timeout=60)
