"""A run's own Ray starts while torch is imported, and is gone when the command ends, however it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from raysim.runs.ahead import _fits_here
from raysim.scenario.schema import Override, Resources
from tests.conftest import REPOSITORY

CPUS = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("resources", "fits"),
    [
        (Resources(), True),
        (Resources(cpus_per_actor=CPUS), True),
        (Resources(cpus_per_actor=CPUS + 1), False),
        (Resources(actors=CPUS), True),
        (Resources(actors=CPUS + 1), False),
        (Resources(actors=CPUS + 1, cpus_per_actor=0.1), True),
        (Resources(clients_per_actor=1), False),
        (Resources(overrides=[Override(models=["cnn1"], cpus_per_actor=1.0)]), False),
    ],
)
def test_only_where_the_actors_are_sure_to_fit(resources: Resources, fits: bool) -> None:
    assert _fits_here(resources) is fits


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Where a Ray may put its own folder; a path below tmp_path would be too long for its sockets."""
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as name:
        yield Path(name)


def launch(ray_folder: Path, tmp_path: Path, *sets: str) -> subprocess.Popen[str]:
    """`raysim launch` of the quickstart."""
    sets = (f"output={tmp_path}/runs", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", *sets)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-m", "raysim", "launch", str(REPOSITORY / "scenarios/quickstart.yaml"), *_options(sets)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ | {"RAY_TMPDIR": str(ray_folder)},
    )


def _options(sets: Sequence[str]) -> list[str]:
    return [word for one in sets for word in ("--set", one)]


def of_ray(folder: Path) -> list[str]:
    """The commands of Ray's processes that name this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


@pytest.mark.large
@pytest.mark.ray
def test_a_run_takes_the_ray_over_that_was_started_ahead(ray_folder: Path, tmp_path: Path) -> None:
    process = launch(ray_folder, tmp_path, "rounds=1")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "rounds                   1" in out
    assert not list(ray_folder.iterdir()) and not of_ray(ray_folder)


@pytest.mark.ray
def test_what_cannot_be_run_leaves_no_ray(ray_folder: Path, tmp_path: Path) -> None:
    process = launch(ray_folder, tmp_path, "data.name=cifar100", f"data.root={tmp_path}")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert len(err.splitlines()) == 1 and err.startswith("raysim: ")
    assert not list(ray_folder.iterdir()) and not of_ray(ray_folder)
    assert not (tmp_path / "runs").exists()


@pytest.mark.large
@pytest.mark.ray
def test_sigterm_while_ray_starts_ends_both(ray_folder: Path, tmp_path: Path) -> None:
    process = launch(ray_folder, tmp_path)
    limit_s = time.monotonic() + 60
    while not of_ray(ray_folder) and time.monotonic() < limit_s:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err.strip() == "raysim: stopped"
    assert not list(ray_folder.iterdir()) and not of_ray(ray_folder)
