"""Two runs that start at the same moment, in one folder and into one new store, do not disturb each other."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.ray, pytest.mark.large]

ROUNDS = 3
STEPS = list(range(ROUNDS + 1))  # what was measured before the first round is round 0


def test_both_end_whole_and_alike(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = workplace / "mlflow.db"  # neither there yet nor the other tests'
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    command = [
        sys.executable, "-c", "from raysim.cli.main import main; main()", "launch",
        str(REPOSITORY / "scenarios" / "quickstart.yaml"), "--set", f"rounds={ROUNDS}", "--set", "resources.actors=1",
    ]  # fmt: skip
    errors = [workplace / "first.txt", workplace / "second.txt"]
    runs = [start(command, error) for error in errors]
    timer = threading.Timer(240, lambda: [run.kill() for run in runs])
    timer.start()
    family: set[psutil.Process] = set()
    try:
        while any(run.poll() is None for run in runs):
            family |= {child for run in runs for child in offspring(run.pid)}
            time.sleep(0.2)
    finally:
        timer.cancel()
        for run in runs:
            run.kill()
            run.wait()
    output = [error.read_text() for error in errors]
    assert [run.returncode for run in runs] == [0, 0], output
    assert not any("Traceback" in text for text in output), output

    folders = sorted((workplace / "runs" / "quickstart").iterdir())
    assert len(folders) == 2
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    assert [one["status"] for one in summaries] == ["finished", "finished"]
    assert summaries[0]["state_digest"] == summaries[1]["state_digest"]
    tables = [pq.read_table(folder / "rounds.parquet") for folder in folders]
    assert [table["round"].to_pylist() for table in tables] == [STEPS] * 2
    assert tables[0]["accuracy/all"].equals(tables[1]["accuracy/all"])
    stored(database, {folder.name for folder in folders}, summaries[0]["final"]["accuracy/all"])

    assert len(family) >= 10  # two Rays were seen
    _, alive = psutil.wait_procs(list(family), timeout=60)
    assert alive == []


def start(command: list[str], error: Path) -> subprocess.Popen[bytes]:
    with error.open("wb") as file:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, process_group=0)


def offspring(pid: int) -> list[psutil.Process]:
    """Everything that a process has started, directly or not."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def stored(database: Path, run_ids: set[str], accuracy: float) -> None:
    """See that MLflow's database has both runs with every round of theirs."""
    with contextlib.closing(sqlite3.connect(database)) as store:
        runs = store.execute("SELECT run_uuid, status FROM runs").fetchall()
        assert [status for _, status in runs] == ["FINISHED", "FINISHED"]
        names = store.execute("SELECT value FROM tags WHERE key = 'raysim.run_id'").fetchall()
        assert {name for (name,) in names} == run_ids
        for uuid, _ in runs:
            rows = store.execute(
                "SELECT step, value FROM metrics WHERE key = 'accuracy/all' AND run_uuid = ? ORDER BY step", (uuid,)
            ).fetchall()
            assert [step for step, _ in rows] == STEPS
            assert rows[-1][1] == round(accuracy, 4)  # The tracker sends accuracies with four decimals.
