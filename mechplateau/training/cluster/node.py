"""What a node of a cluster does: it holds its versions and storage against the driver's, and runs jobs.

A job is a process of its own, started as on the driver's own machine, so that its numbers are the same to the bit. The
functions here travel to the nodes by value, also to one that has no mechplateau, which is then refused by name. So what
they use is the standard library, or travels with them (`on_ray.TRAVELING`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from mechplateau.training.cluster.mirror import NodeMirror, scratch_folder
from mechplateau.training.executor import IN_USE, STOPPED

BEAT = 1.0
"""Seconds between two questions whether to stop."""
IN_USE_PATIENCE = 120.0
"""Seconds that a job which was begun elsewhere before may take to let go of its folder."""
MISFIT = -1000
"""Instead of an exit code: the node is not fit for the job, which was not begun."""

Ended = tuple[int, str]
"""A job's exit code (below 0: the signal that killed it, or MISFIT) and the last line it printed."""

_VERSIONS = """
import hashlib, importlib.util, json, pathlib, platform
from importlib import metadata

def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

source = hashlib.sha256()
for package in ("mechplateau", "mechplateau_kernels"):
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(pathlib.Path(place).rglob("*.py")):
            source.update(f"{path.relative_to(place)}\\n".encode() + path.read_bytes())
own = version("mechplateau")
print(json.dumps({
    "mechplateau": own and f"{own} (source {source.hexdigest()[:8]})",
    "torch": version("torch"),
    "python": ".".join(platform.python_version_tuple()[:2]),
}))
"""

Versions = Mapping[str, str | None]

_FIT: set[str] = set()
"""Tokens of the calls for which this node was found fit; kept in a worker of the cluster."""


class Mirror(Protocol):
    """Keeps a job's folder on the node and the driver's alike: see `mirror`."""

    directory: str
    held: int

    def fetch(self) -> str | None: ...

    def bring(self, final: bool) -> None: ...

    def close(self) -> None: ...


def versions(directory: str) -> Versions:
    """Of the packages that decide a run's numbers, as a job's process that is started in this directory finds them;
    None where one is missing."""
    command = [sys.executable, "-c", _VERSIONS]
    asked = subprocess.run(command, capture_output=True, text=True, cwd=_where(directory))
    if asked.returncode:
        raise RuntimeError(f"the versions of the packages cannot be read: {asked.stderr.strip()[-300:]}")
    found: Versions = json.loads(asked.stdout)
    return found


def token_file(folder: str, token: str) -> Path:
    """Where the driver leaves a text in a folder, by which a node knows that the folder is the driver's."""
    return Path(folder, f".mechplateau-{token}")


def look(directory: str, folder: str | None, token: str, answer: str) -> dict[str, Any]:
    """What a node finds: `host`, `versions`, and `storage`, why it cannot work in the driver's folder, or None.

    It writes the token into a file of its own, for the driver to read.

    Args:
        directory: where jobs are started.
        folder: that all nodes must see; None: none.
        token: what the driver wrote there, and names its file.
        answer: the name of this node's file.
    """
    problem = None
    if folder is not None:
        try:
            problem = None if token_file(folder, token).read_text() == token else "it is another folder"
            token_file(folder, answer).write_text(token)
        except OSError as error:
            problem = error.strerror or str(error)
    return {"host": socket.gethostname(), "versions": dict(versions(directory)), "storage": problem}


def differences(own: Versions, found: Versions, host: str) -> str | None:
    """What of a node's versions is not as here, in words; None where nothing is."""
    differing = [
        f"{name} {found.get(name) or 'is missing'} there and {own[name]} here"
        for name in own
        if own[name] != found.get(name)
    ]
    return f"node {host}: {', '.join(differing)}; install the same on every node" if differing else None


def task(order: Mapping[str, Any], desk: Any, job: int) -> Ended:
    """What Ray runs on a node: `work`, which asks the driver's desk."""
    import ray

    attempt = order["attempt"]

    def ask(method: str, *given: Any) -> Any:
        return ray.get(getattr(desk, method).remote(job, attempt, *given))

    def go_on(line: str) -> bool:
        try:
            return bool(ask("go_on", line))
        except (
            ray.exceptions.RayActorError,
            ray.exceptions.OutOfMemoryError,
        ):  # the driver, or its desk, is gone
            return False

    mirror = None
    if order["collect"] is not None:
        scratch = scratch_folder(f"{order['token']}-{job}-{attempt}")
        mirror = NodeMirror(ask, order["collect"], scratch)
    try:
        return work(order, go_on, mirror)
    finally:
        if mirror is not None:
            mirror.close()


def work(order: Mapping[str, Any], go_on: Callable[[str], bool], mirror: Mirror | None = None) -> Ended:
    """Do a job in its own process, which gets SIGTERM, to save and stop, when `go_on` returns false.

    Args:
        order: `message` as `executor.packed` writes it; `attempt`, counted from 1; `directory`, where the process is
            started; `environment`, variables to set (None: to leave out); `versions`, the driver's, and `folder` and
            `token` as for `look`.
        go_on: called every second with the last line that the job printed; returns whether to continue.
        mirror: for nodes that do not see the driver's folders.
    """
    if (problem := _misfit(order)) is not None:
        return MISFIT, problem
    if not go_on(""):
        return STOPPED, ""
    if mirror is not None and (problem := mirror.fetch()) is not None:
        return MISFIT, problem
    patience = time.monotonic() + (IN_USE_PATIENCE if order["attempt"] > 1 else 0)
    while True:
        code, line = _process(order, go_on, mirror)
        if code != IN_USE or time.monotonic() > patience:
            break
        time.sleep(BEAT)
    if mirror is not None:
        mirror.bring(final=True)
    return code, line


def _misfit(order: Mapping[str, Any]) -> str | None:
    """Why this node cannot do the job: checked again here, since nodes may join a cluster at any time."""
    token, folder, host = order["token"], order["folder"], socket.gethostname()
    if token in _FIT:
        return None
    problem = differences(order["versions"], versions(order["directory"]), host)
    if problem is None and folder is not None and not token_file(folder, token).is_file():
        problem = f"node {host} does not see {folder}"
    if problem is None:
        _FIT.add(token)
    return problem


def _where(directory: str) -> str | None:
    """The driver's directory, where there is one of its name here."""
    return directory if os.path.isdir(directory) else None


def _process(order: Mapping[str, Any], go_on: Callable[[str], bool], mirror: Mirror | None) -> Ended:
    environment = {**os.environ, **order["environment"]}
    # Linux stops the job when this process ends, however it ends: then a lost node's job saves and leaves the folder.
    process = subprocess.Popen(
        [sys.executable, "-m", "mechplateau", "job", "--with-parent", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in environment.items() if value is not None},
        cwd=_where(order["directory"] if mirror is None else mirror.directory),
        pass_fds=() if mirror is None else (mirror.held,),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    heard = LastLine(process.stdout)
    try:
        try:
            process.stdin.write(order["message"])
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended at once, and has said why
        while True:
            try:
                return process.wait(BEAT), heard.end()
            except subprocess.TimeoutExpired:
                if not go_on(heard.text):
                    process.terminate()
                if mirror is not None:
                    mirror.bring(final=False)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        heard.end()


class LastLine:
    """Reads what a process prints, and keeps the last line that is not empty."""

    def __init__(self, stream: IO[bytes]):
        self.text = ""
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def end(self) -> str:
        """The last line of all; whoever else holds the stream open is not waited for long."""
        self._thread.join(5)
        if not self._thread.is_alive():
            self._stream.close()
        return self.text

    def _read(self) -> None:
        for line in self._stream:
            if text := line.decode(errors="replace").strip():
                self.text = text
