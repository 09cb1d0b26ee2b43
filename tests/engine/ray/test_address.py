"""An address at which no Ray cluster answers is one sentence within seconds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import ray

from raysim.common.errors import ScenarioError
from raysim.engine.ray import session


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that listens on this machine, and of which no program accepts a connection."""
    with socket.create_server(("", 0), backlog=1) as server:
        yield server


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that Ray is asked to join, in a process that has joined none."""
    asked: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda address, **options: asked.append(address))
    monkeypatch.setattr(session, "ANSWER_S", 0.2)
    return asked


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no-such-host.invalid"])
def test_no_program_listens(host: str, joined: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"{host}:9")
    with pytest.raises(ScenarioError, match=f"RAY_ADDRESS.*{host}:9.*unset"):
        session.connect()
    assert not joined


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_program_other_than_ray_listens(
    answer: bytes | None, listener: socket.socket, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listener.getsockname()[1]}")
    if answer is not None:
        _answer(listener, answer)
    with pytest.raises(ScenarioError, match="RAY_ADDRESS"):
        session.connect()
    assert not joined


def test_a_cluster_that_answers_is_joined(
    listener: socket.socket, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    _answer(listener, bytes((0, 0, 6, 4, 0, 0, 0, 0, 0)) + bytes(6))  # settings, as gRPC sends them
    assert session.connect() is False
    assert joined == [address]


def _answer(listener: socket.socket, answer: bytes) -> None:
    """Answer the next connection."""

    def accept() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(64)
            connection.sendall(answer)

    threading.Thread(target=accept, daemon=True).start()
