"""Joining a Ray cluster, or starting one on this machine, and what can be said of its nodes."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mechplateau.errors import UserError
from mechplateau.training.executor import cores

_CONNECT_SECONDS = 5.0
_FOUND_BY_RAY = ("auto", "local")
"""Instead of an address: a cluster that Ray finds on this machine, or starts."""
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The frame that HTTP/2 begins with, on both sides; its fourth byte says what it is."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS
"""What a client says first to a cluster, which speaks gRPC."""
_LOCAL_STORE = 128 * 2**20
"""Bytes of the object store of a cluster that is started here: runs are files, and little goes through it."""


def ray_module() -> Any:
    """The library.

    Raises:
        UserError: it is not installed.
    """
    # Set before Ray is imported: it asks and reports nothing then.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError(
            "--executor ray: Ray is not installed; pip install 'mechplateau[ray]' on every node of the cluster"
        ) from None
    return ray


@contextmanager
def joined(address: str | None) -> Iterator[Any]:
    """The library, with a connection: to the cluster at this address, at RAY_ADDRESS, or to one that is started here
    and ends with the connection. One that the caller has made before is used, and left open.

    Raises:
        UserError: Ray is not installed, no cluster answers, or it is of another version.
    """
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    chosen = address or os.environ.get("RAY_ADDRESS") or None
    if chosen is not None:
        _check_address(chosen, "--address" if address else "RAY_ADDRESS:")
    local: dict[str, Any] = {
        "address": "local",
        "num_cpus": cores(),
        "include_dashboard": False,
        "object_store_memory": _LOCAL_STORE,
    }
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            given = local if chosen is None else {"address": chosen}
            _connect(ray, given)
        except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
            what = f"the cluster at {chosen} cannot be joined" if chosen else "no cluster can be started here"
            raise UserError(f"--executor ray: {what} ({_in_a_line(error)})") from None
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _silence(ray)
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, given: Mapping[str, Any]) -> None:
    """Join or start; where a cluster does not answer without Ray's token, with the one that lies here.

    Ray itself uses it only for a cluster whose address it has found. To use it at once would be wrong: with it, nodes
    of a cluster that has none cannot answer this process.
    """
    quiet = {"log_to_driver": False, "logging_level": "CRITICAL"}
    try:
        with _muted(given["address"] not in _FOUND_BY_RAY):
            ray.init(**given, **quiet)
    except ConnectionError:
        if given["address"] in _FOUND_BY_RAY or "RAY_AUTH_MODE" in os.environ or not _token_used():
            raise
        ray.shutdown()
        ray.init(**given, **quiet)


def _token_used() -> bool:
    """Have Ray use the token that lies here, for this process; False where there is none. Ray has no public switch once
    it is imported."""
    try:
        from ray._private.authentication import authentication_token_setup as setup

        return bool(setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False))
    except (ImportError, AttributeError, TypeError):
        return False


@contextmanager
def _muted(mute: bool) -> Iterator[None]:
    """Standard error of this process to nowhere: Ray's C++ part writes there of each try, and raises the last one."""
    if not mute:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _silence(ray: Any) -> None:
    """Have Ray print nothing of workers that died: it would do so on standard output, in many words, and what became of
    their jobs is told. `log_to_driver` does not cover this, and there is no public switch."""
    if hasattr(ray._private.worker, "_worker_logs_enabled"):
        ray._private.worker._worker_logs_enabled = False


def nodes_for(ray: Any, threads: int, gpus: float) -> list[Mapping[str, Any]]:
    """The nodes that could hold a job.

    Raises:
        UserError: there are none.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    fitting = [
        node
        for node in alive
        if node["Resources"].get("CPU", 0) >= threads and node["Resources"].get("GPU", 0) >= gpus
    ]
    if not fitting:
        most = max((int(node["Resources"].get("CPU", 0)) for node in alive), default=0)
        devices = max((node["Resources"].get("GPU", 0) for node in alive), default=0)
        raise UserError(
            f"--executor ray: expected a node with {threads} CPUs and {gpus:g} GPUs for a run (its threads, "
            f"--gpus-per-run), got nodes of at most {most} CPUs and {devices:g} GPUs"
        )
    return fitting


def _check_address(address: str, named: str) -> None:
    """Ray itself waits for minutes where nothing answers. `named`: where the address was given."""
    if address.startswith("ray://"):
        raise UserError(
            f"{named} {address}: expected the cluster's own address (HOST:6379), given on one of its nodes; "
            "Ray's client is not supported"
        )
    if address in _FOUND_BY_RAY:
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not host:
        raise UserError(f"{named} {address}: expected HOST:PORT, as `ray start` prints it, or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true"):
                return  # its greeting is encrypted
            connection.sendall(_GREETING)
            answer = connection.recv(len(_SETTINGS))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"{named} {address}: no Ray cluster answers ({reason}); start one with `ray start --head`, or leave the "
            "address out (and RAY_ADDRESS unset) to start one here"
        ) from None
    if answer[3:4] != _SETTINGS[3:4]:
        raise UserError(
            f"{named} {address}: what answers there is no Ray cluster; expected HOST:PORT as `ray start` prints it, "
            "not the dashboard's"
        )


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


def hosts(nodes: Sequence[Mapping[str, Any]]) -> str:
    """The names of nodes."""
    return ", ".join(str(node["NodeManagerHostname"]) for node in nodes)
