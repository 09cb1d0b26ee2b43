"""A run asks for no address on the network: neither raysim nor the libraries that it uses report anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PROBE = """
import json, sys, threading

asked = []

def hook(event, args):
    if event in ("socket.getaddrinfo", "socket.connect", "socket.sendto"):
        asked.append(f"{event} {args}")

sys.addaudithook(hook)
from raysim.cli.main import main

sets = ["rounds=1", "backend=in_process"]
try:
    main(["launch", sys.argv[1], *(word for one in sets for word in ("--set", one))])
except SystemExit as ended:
    assert not ended.code, ended.code
for thread in threading.enumerate():  # MLflow's telemetry has a thread of its own
    if thread is not threading.current_thread():
        thread.join(2)
print(json.dumps(asked))
"""


@pytest.mark.large
def test_a_run_asks_for_no_address(tmp_path: Path) -> None:
    unset = ("MLFLOW_", "CI", "GITHUB_", "PYTEST_")  # MLflow has no telemetry under CI and pytest
    environ = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    command = [sys.executable, "-c", PROBE, str(REPOSITORY / "scenarios" / "quickstart.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
