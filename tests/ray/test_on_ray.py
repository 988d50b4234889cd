"""Jobs on one Ray node: equal to local processes to the bit, lost and begun again, stopped and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray", reason="Ray is not installed here; `make test-ray` has an environment with it")

from mechplateau import tasks
from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.runs import load_run
from mechplateau.tasks.mws import MovingWindowSum
from mechplateau.training import executor, train
from mechplateau.training.cluster.on_ray import RayCluster
from mechplateau.training.executor import Job, job_function, submit
from mechplateau.training.sweep import sweep

SIZES = {
    "task": {"n": 4, "k": 2, "p": 7, "max_num": 6},
    "model": {"d_model": 8},
    "training": {"steps": 12, "batch_size": 8, "lr": 1e-2},
    "evaluation": {"samples": 8},
    "checkpoints": {"every": 4},
}


@pytest.fixture(scope="module")
def ray():
    """A cluster of one node, which the commands of these tests join."""
    with RayCluster() as cluster:
        yield cluster._ray


@pytest.fixture
def address(ray):
    return ray.get_runtime_context().gcs_address


def files_of(folder):
    """What must be equal to the bit, wherever a run was made."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("environment.json", ".lock")
    }


@pytest.fixture
def notebook_task(monkeypatch):
    """A task of a notebook: its module is __main__, which no other process can import."""
    monkeypatch.setattr(tasks.base, "_REGISTRY", dict(tasks.base._REGISTRY))
    from typing import Literal

    scope = {"__name__": "__main__", "MovingWindowSum": MovingWindowSum, "Literal": Literal}
    source = """
OFFSET = 1
class Cell(MovingWindowSum):
    name: Literal["cell"] = "cell"
    def _sample(self, batch, generator, device):
        return (super()._sample(batch, generator, device) + OFFSET) % 5
"""
    exec(compile(source, "<cell>", "exec", dont_inherit=True), scope)
    tasks.register_task(scope["Cell"])


@pytest.mark.parametrize("collect", [False, True])
def test_equal_to_the_bit_also_a_notebooks_task(ray, notebook_task, tmp_path, collect):
    plain = RunConfig.for_task("mws", **SIZES)
    cell = RunConfig.parse({**plain.data(), "task": {**plain.task.data(), "name": "cell"}})
    wanted = {"runs_dir": tmp_path / "swept", "jobs": None, "threads": 1, "device": "cpu"}
    with RayCluster(collect=collect) as cluster:
        results = sweep([plain, cell], **wanted, executor=cluster)
        assert [(result.outcome, result.message) for result in results] == [("finished", "")] * 2
        again = sweep([plain, cell], **wanted, executor=cluster)
    assert [result.outcome for result in again] == ["skipped"] * 2
    for result in results:
        alone = train(result.config, runs_dir=tmp_path / "alone", threads=1)
        assert files_of(result.path) == files_of(alone.path)
    assert sorted(path.name for path in (tmp_path / "swept").iterdir()) == sorted(
        result.path.name for result in results
    )


def desk():
    """Its process."""
    (found,) = [
        one.pid for one in psutil.process_iter(["cmdline"]) if "ray::Desk" in str(one.info["cmdline"])
    ]
    return found


def lose(folder, threads, *, who, times, counted=None):
    """Kills the worker that began it, itself, or the desk that they report to, so many times."""
    folder = Path(counted or folder)
    folder.mkdir(exist_ok=True)
    tries = len(list(folder.iterdir()))
    (folder / f"try{tries}").touch()
    print(f"try {tries}", flush=True)
    if tries < times:
        time.sleep(1.5)  # until the line was heard
        os.kill({"worker": os.getppid, "itself": os.getpid, "desk": desk}[who](), signal.SIGKILL)
        time.sleep(60)


def refuse(folder, threads):
    raise UserError("text: expected none")


@pytest.fixture
def functions(monkeypatch):
    monkeypatch.setattr(executor, "_FUNCTIONS", {})
    for function in (lose, refuse):
        function.__module__ = "__main__"
        job_function(function.__name__)(function)


def test_what_is_lost_is_begun_again_and_what_fails_is_not(ray, functions, tmp_path, caplog):
    jobs = [
        Job("lose", {"who": "worker", "times": 1}, tmp_path / "worker"),
        Job("lose", {"who": "itself", "times": 1}, tmp_path / "itself"),
        Job("lose", {"who": "itself", "times": 9}, tmp_path / "always"),
        Job("refuse", {}, tmp_path / "refused"),
    ]
    with RayCluster(retries=1) as cluster:
        results = submit(jobs, workers=None, executor=cluster)
    assert [(result.outcome, result.message, result.tries) for result in results] == [
        ("finished", "", 2),
        ("finished", "", 2),
        (
            "failed",
            "lost 2 times, the last time since its process was killed by signal 9; its last line: try 1",
            2,
        ),
        ("failed", "mechplateau: text: expected none", 1),
    ]
    assert [record.message.partition(": ")[2] for record in caplog.records if "worker" in record.message] == [
        "lost (its worker died); it resumes from its last save: retry 1 of 1"
    ]


@pytest.mark.parametrize("collect", [False, True])
def test_a_desk_that_is_lost_is_set_up_again(ray, functions, tmp_path, collect):
    """As when memory runs out where the command was given; what reported to it is begun again."""
    job = Job("lose", {"who": "desk", "times": 1, "counted": str(tmp_path / "tries")}, tmp_path / "desk")
    with RayCluster(retries=1, collect=collect) as cluster:
        (result,) = submit([job], workers=None, executor=cluster)
    assert (result.outcome, result.message, result.tries) == ("finished", "", 2)


def test_other_versions_are_refused_with_both_named(ray, tmp_path, monkeypatch):
    """The node was started before, and so has the true ones."""
    other = tmp_path / "other"
    (other / "torch-9.9.dist-info").mkdir(parents=True)
    (other / "torch-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{other}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    config = RunConfig.for_task("mws", **SIZES)
    with RayCluster() as cluster, pytest.raises(UserError) as refused:
        sweep([config], runs_dir=tmp_path / "runs", jobs=1, threads=1, device="cpu", executor=cluster)
    said = f"torch {metadata.version('torch')} there and 9.9 here; install the same on every node"
    assert str(refused.value).endswith(said)
    assert list((tmp_path / "runs").iterdir()) == []


def command(*arguments, address, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "mechplateau", *arguments, "--executor", "ray", "--address", address],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_interrupted_and_given_again(address, tmp_path):
    sets = ["--set=training.steps=100000", "--set=task={name: mws, n: 4, k: 2, p: 7, max_num: 6}"]
    sets += ["--set=model.d_model=8", "--set=training.batch_size=8", "--set=checkpoints.every=1000"]
    first = command("sweep", "mws", *sets, "--seeds=2", address=address, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("runs/*/metrics.part.jsonl"))) < 2:
        assert time.monotonic() < deadline
        assert first.poll() is None, first.communicate()
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert first.returncode == 130, (out, err)
    assert err == "mechplateau: interrupted\n"
    runs = [load_run(path) for path in sorted(tmp_path.glob("runs/*"))]
    assert [run.status for run in runs] == ["interrupted"] * 2
    reached = [run.reached for run in runs]
    assert min(reached) > 0
    left = [path.name for path in Path(tmp_path, "runs").iterdir() if path.name.startswith(".")]
    assert left == []
