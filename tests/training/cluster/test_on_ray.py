"""The executor with a Ray that only pretends: what is begun again, what is asked for, what is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types

import cloudpickle
import pytest

from mechplateau.errors import RunError, UserError
from mechplateau.files import take_lock
from mechplateau.training import executor
from mechplateau.training.cluster import joining, node
from mechplateau.training.cluster.desk import Desk
from mechplateau.training.cluster.on_ray import TRAVELING, RayCluster
from mechplateau.training.executor import Job, job_function, submit

OWN = {"mechplateau": "0.1 (source aa)", "torch": "2.13.0", "python": "3.11"}


class RayError(Exception):
    pass


class WorkerCrashedError(RayError):
    pass


class RayActorError(RayError):
    pass


class RayTaskError(RayError):
    cause: Exception = OSError("no space")


class Pretended:
    """As much of Ray as the executor uses: a task's end is the next of a list."""

    cloudpickle = types.SimpleNamespace(register_pickle_by_value=lambda module: None)
    exceptions = types.SimpleNamespace(
        RayError=RayError,
        RayActorError=RayActorError,
        OutOfMemoryError=WorkerCrashedError,
        RayTaskError=RayTaskError,
        TaskUnschedulableError=RayTaskError,
        RuntimeEnvSetupError=RayTaskError,
    )

    def __init__(self, ends, found):
        self.ends, self.found, self.asked = ends, found, []

    def is_initialized(self):
        return True

    def nodes(self):
        resources = {"CPU": 2.0, "GPU": 1.0}
        return [
            {
                "Alive": True,
                "NodeID": "1",
                "Resources": resources,
                "NodeManagerHostname": "one",
                "NodeManagerAddress": "10.0.0.1",
            }
        ]

    def remote(self, *wrapped, **options):
        return self._wrap(wrapped[0]) if wrapped else self._wrap

    def _wrap(self, what):
        def call(*given):
            if what is node.look:
                return ("look", given)
            if what is node.task:
                order, _, index = given
                return (index, order["attempt"])
            instance = what(*given)
            return types.SimpleNamespace(
                **{
                    name: types.SimpleNamespace(
                        remote=lambda *a, name=name: ("now", getattr(instance, name)(*a))
                    )
                    for name in ("stop", "last_line")
                }
            )

        def options(**options):
            if what is node.task:
                self.asked.append(options)
            return handle

        handle = types.SimpleNamespace(remote=call, options=options)
        return handle

    def get_runtime_context(self):
        return types.SimpleNamespace(get_node_id=lambda: "1")

    def wait(self, running, *, num_returns, timeout):
        return running[:1], running[1:]

    def get(self, what, timeout=None):
        kind, given = what
        if kind == "now":
            return given
        if kind == "look":
            return self.found(*given)
        end = self.ends[kind].pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def kill(self, actor):
        pass


@pytest.fixture
def pretended(monkeypatch):
    """A cluster whose jobs end so, and whose node finds this."""
    monkeypatch.setattr(executor, "_FUNCTIONS", {})
    monkeypatch.setattr(node, "versions", lambda directory: OWN)
    monkeypatch.setattr(RayCluster, "at", lambda self, node_id: node_id)
    job_function("nothing")(lambda folder, threads: None)

    def cluster(ends, found=node.look, **settings):
        ray = Pretended(ends, found)
        monkeypatch.setattr(joining, "ray_module", lambda: ray)
        return RayCluster(**settings), ray

    return cluster


def test_lost_jobs_are_begun_again_before_others(pretended, tmp_path, caplog):
    ends = {0: [WorkerCrashedError(), (-9, ""), (0, "")], 1: [RayTaskError()], 2: [WorkerCrashedError()] * 3}
    cluster, ray = pretended(ends, retries=2, gpus_per_run=0.25)
    heard = []
    with cluster:
        results = submit(
            [Job("nothing", {}, tmp_path / f"{number}", threads=2) for number in range(3)],
            workers=1,
            executor=cluster,
            on_result=lambda result: heard.append(result.job.folder.name),
        )
    assert [(result.outcome, result.message, result.tries) for result in results] == [
        ("finished", "", 3),
        ("failed", "OSError: no space", 1),
        ("failed", "lost 3 times, the last time since its worker died", 3),
    ]
    assert heard == ["0", "1", "2"]
    assert ray.asked == [{"num_cpus": 2, "num_gpus": 0.25}] * 7
    assert [re.sub(r"^.*/", "", record.message) for record in caplog.records][:2] == [
        "0: lost (its worker died); it resumes from its last save: retry 1 of 2",
        "0: lost (its process was killed by signal 9); it resumes from its last save: retry 2 of 2",
    ]
    assert list(tmp_path.iterdir()) == []  # the tokens are gone


def test_a_job_whose_desk_is_lost_is_begun_again_with_another(pretended, tmp_path):
    """Ray ends the desk, too, where memory runs out: a task that asks it then fails by no fault of its own."""
    lost = RayTaskError()
    lost.cause = RayActorError()
    cluster, _ = pretended({0: [lost, (0, "")], 1: [lost] * 2}, retries=1)
    with cluster:
        results = submit(
            [Job("nothing", {}, tmp_path / f"{number}") for number in range(2)], workers=1, executor=cluster
        )
    why = "Ray ended the process that the job reports to"
    assert [(result.outcome, result.message, result.tries) for result in results] == [
        ("finished", "", 2),
        ("failed", f"lost 2 times, the last time since {why}", 2),
    ]


def test_what_the_desk_says_of_the_drivers_folder_is_told_as_it_is(pretended, tmp_path):
    full = RayTaskError()
    full.cause = RunError("runs/a: cannot be written (No space left on device)")
    cluster, _ = pretended({0: [full]})
    with cluster:
        (result,) = submit([Job("nothing", {}, tmp_path / "0")], workers=1, executor=cluster)
    assert (result.outcome, result.message) == ("failed", str(full.cause))


def test_stopping_waits_for_jobs_whose_desk_is_lost(pretended, tmp_path, monkeypatch):
    cluster, ray = pretended({0: [(143, "")]}, retries=1)
    monkeypatch.setattr(Desk, "stop", lambda self: RayActorError())
    get, waits = ray.get, iter([KeyboardInterrupt()])

    def interrupted_once(running, *, num_returns, timeout):
        for interrupt in waits:
            raise interrupt
        return running[:1], running[1:]

    def gone(what, timeout=None):
        found = get(what, timeout)
        if isinstance(found, RayActorError):
            raise found
        return found

    monkeypatch.setattr(ray, "get", gone)
    monkeypatch.setattr(ray, "wait", interrupted_once)
    heard = []
    with cluster, pytest.raises(KeyboardInterrupt):
        submit(
            [Job("nothing", {}, tmp_path / "0")],
            workers=1,
            executor=cluster,
            on_result=lambda result: heard.append(result.outcome),
        )
    assert heard == ["failed"]


def test_what_is_finished_is_skipped_also_when_its_worker_died_just_after(pretended, tmp_path):
    asked = []

    def finished(job):
        asked.append(job.folder.name)
        if job.folder.name == "damaged":
            raise UserError("damaged")
        return job.folder.name == "old" or asked.count(job.folder.name) > 1

    cluster, _ = pretended({1: [WorkerCrashedError()]})
    jobs = [Job("nothing", {}, tmp_path / name) for name in ("old", "new", "damaged")]
    with cluster:
        results = submit(jobs, workers=None, executor=cluster, finished=finished)
    assert [(result.outcome, result.message) for result in results] == [
        ("skipped", ""),
        ("finished", ""),
        ("failed", "damaged"),
    ]


def test_nothing_begins_where_a_node_is_not_fit(pretended, tmp_path):
    jobs = [Job("nothing", {}, tmp_path / "runs/a")]

    def refused(found, jobs=jobs, **settings):
        cluster, ray = pretended({0: [(0, "")]}, found, **settings)
        with cluster, pytest.raises(UserError) as error:
            submit(jobs, workers=None, executor=cluster)
        assert ray.asked == []
        assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []
        return str(error.value)

    def other(*given):
        return {**node.look(*given), "versions": {**OWN, "torch": "2.12.0"}}

    assert refused(other) == (
        "node one (10.0.0.1): torch 2.12.0 there and 2.13.0 here; install the same on every node"
    )
    blind = refused(lambda directory, folder, *given: node.look(directory, f"{folder}/x", *given))
    assert blind == (
        f"node one (10.0.0.1) does not see {tmp_path}/runs (No such file or directory); use a folder that all nodes "
        "see, or --collect"
    )
    elsewhere = refused(lambda *given: {"host": "one", "versions": OWN, "storage": None})
    assert "does not see" in elsewhere
    wide = [Job("nothing", {}, tmp_path / "runs/a", threads=8)]
    assert refused(node.look, wide, gpus_per_run=0.5) == (
        "--executor ray: expected a node with 8 CPUs and 0.5 GPUs for a run (its threads, --gpus-per-run), got nodes "
        "of at most 2 CPUs and 1 GPUs"
    )


def test_what_is_brought_back_is_not_looked_for(pretended, tmp_path):
    cluster, _ = pretended({0: [(0, "")]}, collect=True)
    with cluster:
        (result,) = submit([Job("nothing", {}, tmp_path / "runs/a")], workers=None, executor=cluster)
    assert result.outcome == "finished"
    outside = Job("nothing", {}, tmp_path / "a", reads=(os.path.join(os.pardir, "x"),))
    with cluster, pytest.raises(UserError, match=r"\.\./x: with --collect, expected what a run reads below"):
        submit([outside], workers=None, executor=cluster)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"retries": -1}, "--retries: expected at least 0, got -1"),
        (
            {"gpus_per_run": 1.5},
            "--gpus-per-run: expected 0 to 1 or a whole number, since Ray shares no more; got 1.5",
        ),
        ({"gpus_per_run": float("inf")}, "--gpus-per-run: expected 0 to 1 or a whole number"),
        ({"gpus_per_run": float("nan")}, "--gpus-per-run: expected 0 to 1 or a whole number"),
    ],
)
def test_values_that_make_no_sense(settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        RayCluster(**settings)


WITHOUT_US = """
import pickle, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mechplateau", "mechplateau_kernels", "torch"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
look, task = pickle.loads(sys.stdin.buffer.read())
print(look.__name__, task.__name__)
"""


def test_what_a_node_does_travels_to_one_without_mechplateau():
    """There it is refused in one line, which needs `look` to begin at all."""
    for module in TRAVELING:
        cloudpickle.register_pickle_by_value(module)
    try:
        sent = cloudpickle.dumps((node.look, node.task))
    finally:
        for module in TRAVELING:
            cloudpickle.unregister_pickle_by_value(module)
    opened = subprocess.run([sys.executable, "-c", WITHOUT_US], input=sent, capture_output=True)
    assert opened.stdout.split() == [b"look", b"task"], opened.stderr.decode()[-300:]


def test_what_a_killed_driver_left_is_removed_and_what_another_holds_is_not(pretended, tmp_path):
    for token in ("dead", "living"):
        for ending in ("", "-0", ".held"):
            (tmp_path / f".mechplateau-{token}{ending}").touch()
    cluster, _ = pretended({0: [(0, "")]})
    with take_lock(tmp_path / ".mechplateau-living.held"), cluster:
        submit([Job("nothing", {}, tmp_path / "0")], workers=1, executor=cluster)
    assert {path.name.partition("-")[2] for path in tmp_path.iterdir()} == {
        "living",
        "living-0",
        "living.held",
    }
