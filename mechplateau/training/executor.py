"""Jobs in separate processes: `submit` takes them; local processes or a cluster do them.

A job is a registered function, plain arguments and the folder it writes; its results lie in that folder. Classes
that the caller has registered (tasks, model kinds, interventions, measurements; also a notebook's) travel to the
process through its pipe, and are never written to a file.
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeVar

from mechplateau.errors import ConfigError, UserError
from mechplateau.interventions import base as interventions
from mechplateau.measurements import base as measurements
from mechplateau.models import kinds
from mechplateau.schema import whole_number
from mechplateau.tasks import base as tasks
from mechplateau.training.interrupt import terminable

logger = logging.getLogger("mechplateau")

STOPPED = 130
"""Exit code of a job's process that was stopped by a signal."""
IN_USE = 75
"""Exit code of a job's process whose folder another process holds."""

_PR_SET_PDEATHSIG = 1

Outcome = Literal["finished", "skipped", "failed"]
_Function = TypeVar("_Function", bound=Callable[..., None])
_FUNCTIONS: dict[str, Callable[..., None]] = {}


@dataclass(frozen=True)
class Job:
    """A piece of work.

    Attributes:
        function: name of a function that was registered with `job_function`.
        arguments: keyword arguments besides `folder` and `threads`: text, numbers, lists and mappings.
        folder: where it writes; the only thing it changes.
        threads: CPU threads it uses.
        reads: files it reads, besides those in its folder.
        alone: no other process may work in its folder at the same time.
    """

    function: str
    arguments: Mapping[str, Any]
    folder: Path
    threads: int = 1
    reads: tuple[Path, ...] = ()
    alone: bool = False


@dataclass(frozen=True)
class JobResult:
    """What became of a job.

    Attributes:
        job: which one.
        outcome: finished now, skipped since it was finished already, or failed.
        message: the last line that a failed job printed.
        tries: how often it was started: more than once if a cluster lost it.
    """

    job: Job
    outcome: Outcome
    message: str = ""
    tries: int = 1


class Executor(Protocol):
    """Does jobs: local processes, or a cluster."""

    def do(
        self,
        jobs: Sequence[Job],
        *,
        workers: int | None,
        finished: Callable[[Job], bool],
        on_result: Callable[[JobResult], None],
    ) -> list[JobResult]:
        """As `submit`; with None as many at a time as there is room for."""


def job_function(name: str) -> Callable[[_Function], _Function]:
    """Decorator: register a function under this name; it is called with `folder`, `threads` and a job's arguments."""

    def register(function: _Function) -> _Function:
        _FUNCTIONS[name] = function
        return function

    return register


def submit(
    jobs: Sequence[Job],
    *,
    workers: int | None,
    executor: Executor | None = None,
    finished: Callable[[Job], bool] = lambda job: False,
    on_result: Callable[[JobResult], None] = lambda result: None,
) -> list[JobResult]:
    """Do the jobs, each in a process of its own, `workers` at a time; one that fails does not stop the others.

    At Ctrl-C, SIGTERM or SIGHUP every process gets SIGTERM, to save and stop, and the exception is raised again.

    Args:
        jobs: what to do, in this order.
        workers: processes at a time; None: as many as the executor has room for, one on the local machine.
        executor: who does them; None: local processes.
        finished: called just before a job starts; returns whether its folder already holds all that it would write.
            If it raises a UserError, the job has failed.
        on_result: called with each result as its job ends, from any thread.

    Returns:
        a result a job, in their order.

    Raises:
        ConfigError: a function is not registered, or `workers` is no whole number from 1 up; then nothing is done.
    """
    if workers is not None and whole_number(workers, "workers") < 1:
        raise ConfigError(f"workers: expected at least 1, got {workers}")
    for job in jobs:
        if job.function not in _FUNCTIONS:
            raise ConfigError(
                f"job: unknown function {job.function!r}; known: {', '.join(sorted(_FUNCTIONS))}"
            )
    chosen = executor or LocalProcesses()
    return chosen.do(jobs, workers=workers, finished=finished, on_result=on_result)


class LocalProcesses:
    """Does jobs in processes on this machine."""

    def do(
        self,
        jobs: Sequence[Job],
        *,
        workers: int | None,
        finished: Callable[[Job], bool],
        on_result: Callable[[JobResult], None],
    ) -> list[JobResult]:
        """As `Executor.do`."""
        children: set[subprocess.Popen[bytes]] = set()
        stopping = threading.Event()

        def one(job: Job) -> JobResult:
            try:
                done = finished(job)
            except UserError as error:
                result = JobResult(job, "failed", str(error))
            else:
                if not done and stopping.is_set():
                    return JobResult(job, "failed", "interrupted")
                result = JobResult(job, "skipped") if done else _done(job, children)
            on_result(result)
            return result

        with ThreadPoolExecutor(workers or 1) as pool, terminable():
            try:
                return list(pool.map(one, jobs))
            except BaseException:
                # Each child saves and stops; rerunning the command resumes them.
                stopping.set()
                for child in list(children):
                    child.terminate()
                raise


def _done(job: Job, children: set[subprocess.Popen[bytes]]) -> JobResult:
    command = [sys.executable, "-m", "mechplateau", "job", "--with-parent", str(os.getpid())]
    message = packed(job)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    children.add(process)
    try:
        output, _ = process.communicate(message)
    finally:
        children.discard(process)
    if process.returncode == 0:
        return JobResult(job, "finished")
    lines = output.decode(errors="replace").strip().splitlines()
    return JobResult(job, "failed", failure(lines[-1] if lines else "", process.returncode))


def failure(line: str, code: int) -> str:
    """The message of a failed job: the last line that it printed, else its exit code; what killed it, if anything."""
    if code < 0:
        guess = " (out of memory?)" if code == -9 else ""
        return killed_by(code) + guess + (f"; its last line: {line}" if line else "")
    return line or f"exit code {code}"


def killed_by(code: int) -> str:
    """What an exit code below 0 says of a process."""
    return f"its process was killed by signal {-code}"


def packed(job: Job) -> bytes:
    """A job as bytes, for `perform` in another process on this machine."""
    message = io.BytesIO()
    pickle.dump(sys.path, message)
    pickle.dump(own_classes(), message)
    pickle.dump((_pickled(_FUNCTIONS[job.function]), job), message)
    return message.getvalue()


def perform(stream: BinaryIO) -> None:
    """Do the job that `packed` wrote. The bytes contain code: only ever read the pipe of the parent process."""
    known = pickle.load(stream)
    sys.path += [folder for folder in known if folder not in sys.path]
    register_classes(pickle.load(stream))
    function, job = pickle.load(stream)
    pickle.loads(function)(folder=job.folder, threads=job.threads, **job.arguments)


def own_classes() -> tuple[bytes, ...]:
    """Each registered class that is not this package's, pickled, for `register_classes` in another process."""
    registered: list[tuple[Callable[..., Any], type]] = [
        *((tasks.register_task, tasks.task_class(name)) for name in tasks.task_names()),
        *((kinds.register_model_kind, type(kinds.model_kind(name))) for name in kinds.model_kinds()),
        *(
            (interventions.register_intervention, interventions.intervention_class(kind))
            for kind in interventions.intervention_kinds()
        ),
        *(
            (measurements.register_measurement, measurements.measurement_class(name))
            for name in measurements.measurement_names()
        ),
    ]
    pickled = []
    for register, cls in registered:
        if not cls.__module__.startswith("mechplateau."):
            try:
                pickled.append(_pickled((register, cls)))
            except Exception as error:  # whatever it holds: an open file, a lock
                logger.warning("%s cannot travel to another process: %s", cls.__qualname__, error)
    return tuple(pickled)


def register_classes(pickled: Iterable[bytes]) -> None:
    """Register what `own_classes` returned in the process that hands out the work."""
    for one in pickled:
        register, cls = pickle.loads(one)
        register(cls)


def _pickled(what: object) -> bytes:
    import cloudpickle

    return cloudpickle.dumps(what)


def stop_with_parent(parent: int) -> None:
    """Ask Linux to send this process SIGTERM when its parent ends, however it ends: a run then saves and stops.

    Args:
        parent: its process number; if it has ended already, SIGTERM comes at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            signal.raise_signal(signal.SIGTERM)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
