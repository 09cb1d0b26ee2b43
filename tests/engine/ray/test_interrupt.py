"""Ctrl-C and SIGTERM end a real `raysim launch` after its round, with a whole run folder and no process left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.ray


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGTERM, id="sigterm", marks=pytest.mark.large)],
)
def test_stops_cleanly(workplace: Path, number: signal.Signals) -> None:
    command = [
        sys.executable, "-c", "from raysim.cli.main import main; main()", "launch",
        str(REPOSITORY / "scenarios" / "quickstart.yaml"), "--set", "rounds=100000", "--set", "resources.actors=1",
    ]  # fmt: skip
    # A group of its own: like a terminal, Ctrl-C goes to Ray's processes as well.
    run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, process_group=0)
    timer = threading.Timer(240, run.kill)
    timer.start()
    try:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("round ") and not line.startswith("round      0/"):
                break
        family = psutil.Process(run.pid).children(recursive=True)
        assert any("raylet" in process.name() for process in family)
        if number == signal.SIGINT:
            os.killpg(run.pid, number)
        else:
            run.send_signal(number)
        output = run.stderr.read()
        assert run.wait(240) == 130, output
    finally:
        timer.cancel()
        run.kill()
        run.communicate()
    assert "Traceback" not in output
    assert "stopped" in output
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    (folder,) = (workplace / "runs" / "quickstart").iterdir()
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    assert pq.read_table(folder / "rounds.parquet").num_rows >= 2
