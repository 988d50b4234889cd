"""Jobs on a Ray cluster: each is a task with its CPUs and its share of a GPU.

    with RayCluster(retries=3) as cluster:
        sweep(configs, …, executor=cluster)

1. Before anything begins, every node that could take a job says which versions it has and shows that it sees the
   folder that is written to (or folders are brought back: `collect`).
2. Every job is a task; Ray chooses its node. The task starts the job's process and asks the desk every second.
3. A job whose worker or node is lost is started again, and resumes from its last save.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechplateau import files
from mechplateau.errors import UserError
from mechplateau.files import explained
from mechplateau.training import cluster as package
from mechplateau.training.cluster import node
from mechplateau.training.cluster.desk import Collected, Desk
from mechplateau.training.cluster.joining import joined, nodes_for
from mechplateau.training.cluster.tries import Lost, Tries
from mechplateau.training.executor import Job, JobResult, packed
from mechplateau.training.interrupt import terminable

logger = logging.getLogger("mechplateau")

TRAVELING = (package, files)
"""Modules whose functions travel to the nodes by value: what a node does (see `node`), and the writing that it uses."""
RETRIES = 3
_ANSWER_SECONDS = 180.0
"""For a node to say what it has."""
_NO_NODE_SECONDS = 60.0
"""How long jobs wait while no node could take them."""
_HELD = ".held"
"""Ending of the file that a driver holds locked beside its token."""
_SENT = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TRITON_INTERPRET",
)
"""Variables that jobs have as the driver has them: Ray sets some of them for its workers."""


class RayCluster:
    """An executor; to be entered with `with`, for as many calls as there are.

    Args:
        address: the cluster's; None: that of RAY_ADDRESS, else one is started on this machine.
        gpus_per_run: share of a GPU that each job gets.
        collect: nodes do not see the folders of this machine: jobs write on their node, and what they save is brought
            back.
        retries: how often a job that was lost is begun again.

    Raises:
        UserError: Ray is not installed, no cluster answers, or a value makes no sense.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        gpus_per_run: float = 0.0,
        collect: bool = False,
        retries: int = RETRIES,
    ):
        if not 0 <= gpus_per_run < math.inf or (gpus_per_run > 1 and gpus_per_run != int(gpus_per_run)):
            raise UserError(
                f"--gpus-per-run: expected 0 to 1 or a whole number, since Ray shares no more; got {gpus_per_run:g}"
            )
        if retries < 0:
            raise UserError(f"--retries: expected at least 0, got {retries}")
        self.address, self.gpus, self.collect, self.retries = address, gpus_per_run, collect, retries
        self._open = ExitStack()
        self._ray: Any = None

    def __enter__(self) -> RayCluster:
        self._ray = self._open.enter_context(joined(self.address))
        for module in TRAVELING:
            self._ray.cloudpickle.register_pickle_by_value(module)
        self.look = self._ray.remote(num_cpus=0, max_retries=0)(node.look)
        self.task = self._ray.remote(max_retries=0)(node.task)
        self.desk = self._ray.remote(num_cpus=0)(Desk)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def do(
        self,
        jobs: Sequence[Job],
        *,
        workers: int | None,
        finished: Callable[[Job], bool],
        on_result: Callable[[JobResult], None],
    ) -> list[JobResult]:
        """As `Executor.do`.

        Raises:
            UserError: a node has other versions, or does not see the folder; no node has room for a job; then nothing
                has begun.
        """
        if self._ray is None:
            raise UserError("the cluster is not joined; use it as `with RayCluster() as cluster:`")
        if not jobs:
            return []
        with ExitStack() as stack:
            token = secrets.token_hex(8)
            if not self.collect:
                for folder in dict.fromkeys(_root(job) for job in jobs):
                    stack.enter_context(_token(folder, token))
            order = {
                "token": token,
                # Where folders are brought back, a folder of this name on a node is another one.
                "directory": tempfile.gettempdir() if self.collect else os.getcwd(),
                "versions": node.versions(os.getcwd()),
                "environment": _environment(),
            }
            nodes = nodes_for(self._ray, max(job.threads for job in jobs), self.gpus)
            self._check(nodes, dict.fromkeys(_root(job) for job in jobs), order)
            return _Call(self, jobs, order, finished, on_result).do(workers)

    def _check(self, nodes: Sequence[Any], folders: Iterable[Path], order: dict[str, Any]) -> None:
        """Raise UserError where a node is not fit."""
        for folder in folders:
            told = None if self.collect else str(folder)
            answers = {one["NodeID"]: f"{order['token']}-{number}" for number, one in enumerate(nodes)}
            asked = [
                self.look.options(scheduling_strategy=self.at(one["NodeID"])).remote(
                    order["directory"], told, order["token"], answers[one["NodeID"]]
                )
                for one in nodes
            ]
            for one, answer in zip(nodes, asked, strict=True):
                name = f"{one['NodeManagerHostname']} ({one['NodeManagerAddress']})"
                try:
                    found = self._ray.get(answer, timeout=_ANSWER_SECONDS)
                except self._ray.exceptions.RayError as error:
                    raise UserError(f"node {name} does not answer: {reason(error)}") from None
                problem = node.differences(order["versions"], found["versions"], name)
                if problem is not None:
                    raise UserError(problem)
                if told is None:
                    continue
                file, said = node.token_file(told, answers[one["NodeID"]]), found["storage"]
                if said is None and not _holds(file, order["token"]):
                    said = "what it writes there is not seen here"
                if said is not None:
                    raise UserError(
                        f"node {name} does not see {told} ({said}); use a folder that all nodes see, or --collect"
                    )

    def at(self, node_id: str) -> Any:
        """Ray's word for: on this node and no other."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id, soft=False)


class _Call:
    """One call of `do`."""

    def __init__(
        self,
        cluster: RayCluster,
        jobs: Sequence[Job],
        order: dict[str, Any],
        finished: Callable[[Job], bool],
        on_result: Callable[[JobResult], None],
    ):
        self.cluster, self.ray, self.gpus = cluster, cluster._ray, cluster.gpus
        self.jobs, self.order = jobs, order
        self.finished, self.on_result = finished, on_result
        self.tries = Tries(jobs, cluster.retries)
        self.results: dict[int, JobResult] = {}
        self.running: dict[Any, int] = {}
        self.stopping = False
        self.desk = self._new_desk()
        self.no_node_since: float | None = None

    def _new_desk(self) -> Any:
        here = self.ray.get_runtime_context().get_node_id()
        return self.cluster.desk.options(scheduling_strategy=self.cluster.at(here)).remote(
            {index: _collected(job) for index, job in enumerate(self.jobs)} if self.cluster.collect else {}
        )

    def do(self, workers: int | None) -> list[JobResult]:
        waiting = deque(range(len(self.jobs)))
        with terminable():
            try:
                while waiting or self.running:
                    while waiting and (workers is None or len(self.running) < workers):
                        self._begin(waiting.popleft())
                    # Those that are begun again come first.
                    waiting.extendleft(reversed(self._ended()))
            except BaseException:
                self._stop()
                raise
            finally:
                self.ray.kill(self.desk)
        return [self.results[index] for index in range(len(self.jobs))]

    def _begin(self, index: int) -> None:
        job = self.jobs[index]
        try:
            if self.finished(job):
                again = self.tries.begun(index) > 0  # lost when it had just ended
                outcome = JobResult(
                    job, "finished" if again else "skipped", tries=self.tries.begun(index) or 1
                )
                return self._result(index, outcome)
        except UserError as error:
            return self._result(index, JobResult(job, "failed", str(error)))
        there = _name_on_nodes(job) if self.cluster.collect else os.path.abspath(job.folder)
        order = {
            **self.order,
            "attempt": self.tries.begin(index),
            "message": packed(replace(job, folder=Path(there))),
            "folder": None if self.cluster.collect else str(_root(job)),
            "collect": there if self.cluster.collect else None,
        }
        try:
            self.ray.get(self.desk.last_line.remote(index))
        except _gone(self.ray):  # Ray ends it, too, where memory runs out; all that asked the old one stop
            self.ray.kill(self.desk)  # it may live, out of reach, and hold the folders
            self.desk = self._new_desk()
        task = self.cluster.task.options(num_cpus=job.threads, num_gpus=self.gpus)
        self.running[task.remote(order, self.desk, index)] = index

    def _ended(self) -> list[int]:
        """Note what has ended; which jobs are to be begun again."""
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=1.0)
        again = []
        for one in ready:
            index = self.running.pop(one)
            end = self._end(index, one)
            if isinstance(end, JobResult):
                self._result(index, end)
                continue
            again.append(index)
            logger.warning(
                "%s: lost (%s); it resumes from its last save: retry %d of %d",
                self.jobs[index].folder,
                end.why,
                self.tries.begun(index),
                self.cluster.retries,
            )
        if not ready:
            self._expect_room()
        return again

    def _end(self, index: int, task: Any) -> JobResult | Lost:
        errors = self.ray.exceptions
        try:
            return self.tries.ended(index, self.ray.get(task), self.stopping)
        except (errors.RayTaskError, errors.TaskUnschedulableError, errors.RuntimeEnvSetupError) as error:
            if isinstance(getattr(error, "cause", None), _gone(self.ray)):
                why = "Ray ended the process that the job reports to"
                return self.tries.lost(index, why, "", self.stopping)
            return self.tries.failed(index, reason(error))
        except errors.RayError as error:
            line = ""
            with suppress(errors.RayError):
                line = self.ray.get(self.desk.last_line.remote(index))
            return self.tries.lost(index, reason(error), line, self.stopping)

    def _expect_room(self) -> None:
        """Raise UserError where for a minute no node was left that could take a job."""
        try:
            nodes_for(self.ray, max(job.threads for job in self.jobs), self.gpus)
        except UserError as error:
            self.no_node_since = self.no_node_since or time.monotonic()
            if time.monotonic() - self.no_node_since > _NO_NODE_SECONDS:
                raise UserError(f"{error}; rerun the same command to resume") from None
        else:
            self.no_node_since = None

    def _result(self, index: int, result: JobResult) -> None:
        self.results[index] = result
        self.on_result(result)

    def _stop(self) -> None:
        """Have every job save and stop, and wait for them."""
        self.stopping = True
        with suppress(self.ray.exceptions.RayError):
            try:
                begun = self.ray.get(self.desk.stop.remote())
            except _gone(self.ray):
                begun = list(self.running.values())  # who asks a desk that is gone stops
            for task, index in self.running.items():
                if index not in begun:
                    self.ray.cancel(task)
            while self.running:
                self._ended()


def _gone(ray: Any) -> tuple[type[Exception], ...]:
    """What a call of an actor raises when the actor is no more."""
    return ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError


def reason(error: Exception) -> str:
    """Why Ray has lost a task, or what a task died of, in a line."""
    known = {
        "WorkerCrashedError": "its worker died",
        "NodeDiedError": "its node died",
        "LocalRayletDiedError": "its node's Ray died",
        "OutOfMemoryError": "its node ran out of memory",
    }
    cause = getattr(error, "cause", None)
    if isinstance(cause, UserError):
        return str(cause)
    if isinstance(cause, Exception):
        return f"{type(cause).__name__}: {cause}".partition("\n")[0]
    return known.get(type(error).__name__) or f"{type(error).__name__}: {error}".partition("\n")[0]


def _holds(file: Path, token: str) -> bool:
    try:
        return file.read_text() == token
    except OSError:
        return False


def _root(job: Job) -> Path:
    """The folder that the job's folder lies in, as every node must see it."""
    return Path(os.path.abspath(job.folder)).parent


def _name_on_nodes(job: Job) -> str:
    """What the folder is called from where the job is started, on nodes that do not see the driver's."""
    name = os.path.normpath(job.folder)
    if os.path.isabs(name) or name.startswith(os.pardir):
        return os.path.join(*Path(os.path.abspath(name)).parts[-2:])
    return name


def _collected(job: Job) -> Collected:
    for path in job.reads:
        if os.path.normpath(path).startswith(os.pardir):
            raise UserError(
                f"{path}: with --collect, expected what a run reads below the working directory or as an absolute "
                "path, which a node can have too"
            )
    reads = {str(path): os.path.abspath(path) for path in job.reads}
    return Collected(os.path.abspath(job.folder), job.alone, reads)


def _environment() -> dict[str, str | None]:
    own = {name: value for name, value in os.environ.items() if name.startswith("MECHPLATEAU_")}
    return {name: os.environ.get(name) for name in _SENT} | own


@contextmanager
def _token(folder: Path, token: str) -> Iterator[None]:
    file = node.token_file(str(folder), token)
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{node.token_file('', '*')}{_HELD}"):
            if _abandoned(left):
                _remove(folder, left.name.removesuffix(_HELD))
        lock = files.take_lock(file.with_name(f"{file.name}{_HELD}"))
        file.write_text(token)
    try:
        yield
    finally:
        _remove(folder, file.name)
        if lock is not None:
            lock.close()


def _abandoned(held: Path) -> bool:
    """Whether the driver that held this was killed, and could not remove its files; False where locks do not tell."""
    try:
        lock = files.take_lock(held)
    except OSError:
        return False  # its driver lives, or another one has just removed it
    if lock is None:
        return False
    with lock:
        try:
            again = files.take_lock(held)
        except BlockingIOError:
            return True
        if again is not None:
            again.close()
        return False


def _remove(folder: Path, name: str) -> None:
    with suppress(OSError):
        for left in folder.glob(f"{name}*"):
            left.unlink()
