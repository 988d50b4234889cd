"""Which cluster is joined, with a Ray that only pretends, and what is said where none can be."""

from __future__ import annotations

import os
import re
import socket
import threading
import types

import pytest

from mechplateau.errors import UserError
from mechplateau.training.cluster import joining


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "expected the cluster's own address (HOST:6379), given on one of its nodes"),
        ("head", "expected HOST:PORT, as `ray start` prints it, or auto"),
        ("127.0.0.1:1", "no Ray cluster answers (Connection refused); start one with `ray start --head`"),
    ],
)
def test_an_address_where_no_cluster_is(monkeypatch, address, message):
    monkeypatch.setattr(
        joining, "ray_module", lambda: types.SimpleNamespace(is_initialized=lambda: False, shutdown=None)
    )
    with (
        pytest.raises(UserError, match=re.escape(f"--address {address}: {message}")),
        joining.joined(address),
    ):
        pass


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request", "what answers there is no Ray cluster; expected HOST:PORT as"),
        (b"", "what answers there is no Ray cluster"),
        (None, "no Ray cluster answers (timed out)"),
        (b"\0\0\x18\4\0\0\0\0\0", None),
    ],
)
def test_another_service_at_the_address(monkeypatch, answer, said):
    """Ray would wait for minutes."""
    monkeypatch.setattr(joining, "_CONNECT_SECONDS", 0.2)

    def serve():
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            if answer is None:
                over.wait(10)
            else:
                connection.sendall(answer)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve)
        serving.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        try:
            if said is None:
                joining._check_address(address, "--address")
            else:
                with pytest.raises(UserError, match=re.escape(f"--address {address}: {said}")):
                    joining._check_address(address, "--address")
        finally:
            over.set()
            serving.join()


def test_a_cluster_with_tls_is_not_refused_for_its_greeting(monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        joining._check_address(f"127.0.0.1:{server.getsockname()[1]}", "--address")
    with pytest.raises(UserError, match="no Ray cluster answers"):
        joining._check_address("127.0.0.1:1", "--address")


def test_an_address_of_the_environment_is_named_as_such(monkeypatch):
    monkeypatch.setattr(
        joining, "ray_module", lambda: types.SimpleNamespace(is_initialized=lambda: False, shutdown=None)
    )
    monkeypatch.setenv("RAY_ADDRESS", "head")
    with pytest.raises(UserError, match=r"^RAY_ADDRESS: head: expected HOST:PORT"), joining.joined(None):
        pass


class Locked:
    """A Ray whose cluster answers only with its token, and writes about each try as Ray's C++ part does."""

    exceptions = types.SimpleNamespace(RayError=OSError)
    _private = types.SimpleNamespace(worker=types.SimpleNamespace())

    def __init__(self, monkeypatch, there):
        self.tried, self.token, self.there = [], False, there
        monkeypatch.setattr(joining, "ray_module", lambda: self)
        monkeypatch.setattr(joining, "_check_address", lambda address, named: None)
        monkeypatch.setattr(joining, "_token_used", self.use)
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        monkeypatch.setenv("RAY_ADDRESS", "head:6379")

    def use(self):
        self.token = self.there
        return self.there

    def is_initialized(self):
        return False

    def shutdown(self):
        pass

    def init(self, address, **_):
        self.tried.append((address, self.token))
        if not self.token:
            os.write(2, b"Unauthenticated")
            raise ConnectionError("Failed to connect")


def test_a_cluster_that_asks_for_a_token_is_joined_with_the_one_that_lies_here(monkeypatch, capfd):
    ray = Locked(monkeypatch, there=True)
    with joining.joined(None) as found:
        assert found is ray
    assert ray.tried == [("head:6379", False), ("head:6379", True)]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("there", "mode"), [(False, None), (True, "disabled")])
def test_without_a_token_or_with_a_mode_that_was_chosen_it_is_not(monkeypatch, capfd, there, mode):
    ray = Locked(monkeypatch, there)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    said = r"^--executor ray: the cluster at head:6379 cannot be joined \(Failed to connect\)$"
    with pytest.raises(UserError, match=said), joining.joined(None):
        pass
    assert ray.tried == [("head:6379", False)]
    assert capfd.readouterr().err == ""
