"""Addresses of MLflow stores: which are taken, and how others are refused, quickly and in one sentence."""

from __future__ import annotations

import http.server
import socket
import threading
from contextlib import contextmanager

import pytest

from raysim.common.errors import ScenarioError
from raysim.results.store import check_uri, resolve_uri


def test_order_of_addresses(tmp_path, monkeypatch):
    assert resolve_uri(None) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000/")
    assert resolve_uri(None) == "http://host:5000"
    assert resolve_uri("sqlite:///sub/a.db?timeout=9") == f"sqlite:///{tmp_path}/sub/a.db?timeout=9"
    assert resolve_uri("sqlite:////abs/a.db") == "sqlite:////abs/a.db"


def test_server_that_is_not_there_is_refused_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ScenarioError) as caught:
        check_uri(f"http://127.0.0.1:{port}")
    assert "tracking.uri" in str(caught.value) and "refused" in str(caught.value)


@contextmanager
def answering(code: int):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code if self.path == "/health" else 500)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_server_that_answers(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # must not be asked about loopback
    for code in (200, 401):
        with answering(code) as address:
            assert check_uri(f"http://{address}/") == f"http://{address}"
    with answering(404) as address, pytest.raises(ScenarioError, match=address):
        check_uri(f"http://{address}")


def test_an_address_with_a_password_is_refused():
    with pytest.raises(ScenarioError, match="MLFLOW_TRACKING_USERNAME"):
        resolve_uri("http://me:secret@h")


def test_database_files(tmp_path):
    assert check_uri("sqlite:///new.db") == f"sqlite:///{tmp_path}/new.db"
    with pytest.raises(ScenarioError, match="cannot be written"):
        check_uri("sqlite:///missing/new.db")
