"""What fails in a sweep stops nothing else: it says what is left and why, and the same command finishes it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from mlflow.tracking import MlflowClient

from raysim.algorithms.fedgh import FedGH
from raysim.algorithms.fedproto import FedProto
from raysim.engine.stop import Stop
from raysim.results.mlflow import MlflowTracker
from raysim.study.cells import counts, states_of
from raysim.study.loop import run_sweep
from raysim.study.workers import CellTask, Outcome, SweepProgress, run_cell
from tests.cli.command import run
from tests.conftest import said
from tests.study.conftest import Pool
from tests.study.test_loop import run_folders, sweep_of


def faulty(task: CellTask, stop: Stop, report: Callable[[int], None]) -> Outcome:
    """`run_cell` with a FedGH that raises and a FedProto whose process is killed, until `mended` is there."""
    place = Path(task.cell.scenario.output).parents[1]

    def raise_error(*_: object) -> None:
        raise ValueError("my own mistake")

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if (place / "mended").exists():
        return run_cell(task, stop, report)
    with mock.patch.object(FedGH, "server_update", raise_error), mock.patch.object(FedProto, "server_update", die):
        return run_cell(task, stop, report)


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_code_that_raises_and_a_worker_that_is_killed(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("raysim.study.loop.run_cell", faulty)
    sweep_of(workplace, grid={"algorithm.name": ["fedgh", "fedproto", "standalone"]})
    code, out, error = run(capfd, "sweep", "sweep.yaml", "--parallel", "2")
    assert code == 1
    raised, died, done, summed, _ = out.splitlines()[-5:]  # Ray prints about the killed process before
    assert raised.startswith("failed ") and "0/3  fedgh  " in raised and "my own mistake" in raised
    assert died.startswith("interrupted ") and "0/3  fedproto  its process or node died (" in died
    assert (done, summed) == ("done              3/3  standalone", "1 done, 1 interrupted, 1 failed")
    assert "raysim: 2 of 3 cells are not done; run the same command to continue, with --retry-failed to repeat" in error

    (workplace / "mended").touch()
    code, out, error = run(capfd, "sweep", "sweep.yaml", "--parallel", "1", "--retry-failed")
    assert (code, out.splitlines()[-2]) == (0, "3 done")
    assert len(list((workplace / "runs" / "sweep").glob("*/*/summary.json"))) == 3  # resumed, not begun anew


@pytest.mark.large
@pytest.mark.ray
def test_a_worker_that_ray_kills_for_memory() -> None:
    """Ray's own memory monitor, with a threshold that every machine is above. Ray does not try again for ever."""
    program = """
import time
from raysim.engine.ray.tasks import Tasks

def work(task, stop, report):
    time.sleep(60)

with Tasks(work, 1) as tasks:
    tasks.connect()
    tasks.start("cell", None, 1)
    while tasks.running:
        for name, result in tasks.wait():
            print(name, result)
"""
    monitor = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | monitor
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=100)
    assert "cell its node ran out of memory" in done.stdout and "--parallel" in done.stdout


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_full_disk(workplace: Path, small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["fedgh", "standalone"]
    sets = ["rounds=30", "checkpoint.every=1", f"output={small_disk / 'runs'}"]
    sweep = sweep_of(workplace, *sets, grid={"algorithm.name": names})

    def fill(progress: SweepProgress) -> None:
        if not (small_disk / "filler").exists() and progress.running and progress.running[0][1] >= 1:
            with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))

    failed, waiting = run_sweep(sweep, parallel=1, show=fill)
    assert failed.state != "done" and "no space left on device" in failed.reason.lower()
    assert waiting.state == "waiting" and "no space left on device" in waiting.reason
    assert [note.partition(":")[0] for note in said(caplog)] == names
    (small_disk / "filler").unlink()
    again = run_sweep(sweep, parallel=2, retry_failed=True)
    assert counts(again) == "2 done"
    assert len(run_folders(sweep)) == 2  # what had begun was resumed


@pytest.mark.large
@pytest.mark.usefixtures("recorded_in_mlflow")
def test_mlflow_is_gone(workplace: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run to their end and say what MLflow lacks; the same command adds it."""
    monkeypatch.setitem(MlflowTracker.__init__.__kwdefaults__, "timeout_s", 0.2)
    sweep = sweep_of(workplace, name="gone")  # an experiment without the cells of other tests

    accept = MlflowClient.log_batch

    def refuse(client: MlflowClient, *given: Any, metrics: Sequence[Any] = (), **named: Any) -> None:
        if any(metric.step > 0 for metric in metrics):
            raise ConnectionError("connection refused")
        accept(client, *given, metrics=metrics, **named)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", refuse)
        assert all("does not have the whole run" in one.reason for one in run_sweep(sweep))
    assert [(one.state, one.rounds) for one in states_of(sweep)] == [("interrupted", 3)] * 2
    assert counts(run_sweep(sweep)) == "2 done"
    assert len(run_folders(sweep)) == 2
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    cells = client.search_runs([client.get_experiment_by_name(sweep.name).experiment_id], "tags.cell != ''")
    recorded = [client.get_metric_history(cell.info.run_id, "comm/up_bytes") for cell in cells]
    assert [[one.step for one in history] for history in recorded] == [[1, 2, 3]] * 2
