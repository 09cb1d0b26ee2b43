"""`raysim ui` serves MLflow's pages for the right store, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from raysim.results.mlflow import MlflowTracker


def ask(port: int, what: str, question: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/2.0/mlflow/{what}",
        json.dumps(question).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return dict(json.load(answer))


@pytest.mark.large
def test_the_server_shows_runs_and_ends_with_its_children(store, tmp_path, make_card):
    tracker = MlflowTracker(store, "seen", {})
    tracker.open(make_card(tmp_path))
    tracker.log(1, {"accuracy/all": 8 / 9}, [])
    tracker.close("finished", {})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "raysim", "ui", "--uri", store, "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as server:
        end = time.monotonic() + 240
        while True:
            try:
                found = ask(port, "runs/search", {"experiment_ids": [tracker.experiment_id]})
                break
            except OSError:
                assert time.monotonic() < end and server.poll() is None
                time.sleep(0.2)
        assert '"value": 0.8889' in json.dumps(found)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    with pytest.raises(urllib.error.URLError):
        ask(port, "runs/search", {})
