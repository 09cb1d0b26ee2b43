"""What all tests share: caches that are not the user's, and one Ray for the session."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# A shell starts the background jobs of a script with SIGINT ignored, and every child of such a job inherits that: a
# test that sends Ctrl-C would wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Two workers share two cores: with a second thread each, they would wait for one another in every small operation.
# Processes that the tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ray gives its workers a low priority, so that actors would wait for the tests in the other processes.
os.environ.setdefault("RAY_worker_niceness", "0")

# On a busy machine any example may take seconds.
hypothesis.settings.register_profile("raysim", deadline=None)
hypothesis.settings.load_profile("raysim")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded images go to a folder of the test session, not to the home folder."""
    before = os.environ.get("RAYSIM_CACHE")
    if before is None:
        os.environ["RAYSIM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["RAYSIM_CACHE"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Torch computes on one thread, whatever the test before has set."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_root() -> str:
    """The folder with real CIFAR-100 and Fashion-MNIST: RAYSIM_DATA, else ../shared/data; skips without."""
    for folder in (os.environ.get("RAYSIM_DATA"), REPOSITORY.parent / "shared" / "data"):
        if folder and (Path(folder) / "cifar100").is_dir():
            return str(folder)
    pytest.skip("real data is neither at RAYSIM_DATA nor at ../shared/data")


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray with 32 logical CPUs and 2 logical GPUs for all tests that need one."""
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray's workers look for modules where the driver stands at this moment. The first test to ask may stand in an empty
    # folder, and then every later task or actor made of a test's own function would fail to import `tests`.
    with chdir(REPOSITORY):
        ray.init(address="local", num_cpus=32, num_gpus=2, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def tracking_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One MLflow store for all tests that do not look into it: making a new one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    if "PYTEST_XDIST_WORKER" in os.environ:  # else MLflow makes it for the first test that records a run
        shutil.copy(empty_database(tmp_path_factory), path)
    return f"sqlite:///{path}"


def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs, made once for all processes of xdist."""
    from raysim.results.database import ensure_database

    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "empty-mlflow.db"
    ensure_database(f"sqlite:///{path}")
    return path


def _no_picture(*args: Any, **_: Any) -> None:
    """An empty file where a run draws a picture."""
    next(arg for arg in args if isinstance(arg, Path)).write_bytes(b"")


def _no_mlflow(tracker: Any, card: Any) -> None:
    """In the place of `MlflowTracker.open`: a tracker that was not opened sends nothing, and closes at once."""


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of comparisons are made and put into files, but not drawn: that takes most of the time of a report."""

    def save(figure: Any, file: Any, **_: Any) -> None:
        if isinstance(file, Path):
            file.write_bytes(b"not drawn")
        else:
            file.write(b"<svg/>")

    monkeypatch.setattr("raysim.study.pictures.save", save)
    monkeypatch.setattr("raysim.study.report.save", save)


def plain_runs(patch: pytest.MonkeyPatch, store: str, recorded: bool = False) -> None:
    """From now on, runs draw no pictures, and MLflow's store is `store`; they are recorded in it only if asked for."""
    if not recorded:
        patch.setattr("raysim.results.mlflow.MlflowTracker.open", _no_mlflow)
        patch.setattr("raysim.results.mlflow.MlflowTracker.ready", lambda tracker: True)
    patch.setattr("raysim.runs.execution.draw_heatmap", _no_picture)
    patch.setattr("raysim.runs.execution.plot_accuracy", _no_picture)
    patch.setenv("MLFLOW_TRACKING_URI", store)


@pytest.fixture
def recorded_in_mlflow() -> None:
    """For tests that look into MLflow: runs in `workplace` are recorded there."""


@pytest.fixture
def workplace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracking_store: str, request: pytest.FixtureRequest
) -> Path:
    """An empty current folder, without the settings of the user who runs the tests; runs draw no pictures.

    Drawing takes more than half the time of a tiny run. Real pictures are drawn in `engine/test_run.py` (fixture
    `finished`), `results/test_plots.py`, `data/test_partition.py`, and by every run that is a process or a job.
    Recording a run in MLflow takes as long as its training, so it is done only for tests with `recorded_in_mlflow`,
    and in the same other places.
    """
    plain_runs(monkeypatch, tracking_store, recorded="recorded_in_mlflow" in request.fixturenames)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages of raysim's own loggers: Ray reports dead workers in between."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("raysim")]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of four MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


SLOW = (
    "data/test_datasets.py",
    "engine/test_bytes.py",
    "engine/checkpoint/test_full_disk.py",
    "engine/test_run.py",
    "engine/test_recovery.py",
    "engine/test_system.py",
    "engine/workers/test_time_limit.py",
    "independent/test_independent.py",
    "jobs/test_stopping.py",
    "runs/test_closing.py",
    "runs/test_code.py",
    "runs/test_resume.py",
    "runs/test_verify.py",
    "scenario/test_papers.py",
    "results/test_mlflow_resume.py",
    "results/test_mlflow_tracker.py",
    "results/test_reopened_folder.py",
    "results/test_ui.py",
)
"""Files without Ray whose tests train or wait for seconds: `make test-fast` leaves them out."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share one Ray, or finished runs, in one process; a process would make its own.

    Tests that start a Ray of their own stay together by file.
    """
    for item in items:
        if item.path.relative_to(REPOSITORY / "tests").as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("xdist_group"):
            continue
        fixtures = getattr(item, "fixturenames", ())
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray" if "ray_session" in fixtures else item.path.name))
        elif "runs" in fixtures:
            item.add_marker(pytest.mark.xdist_group("inspection"))
        elif "finished" in fixtures:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.name}-finished"))
