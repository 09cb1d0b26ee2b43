"""A run folder on its way through a job's log."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from raysim.jobs.job_log import PREFIX
from tests.cli.command import run
from tests.jobs.fakes import FakeClient, details, use

Capture = pytest.CaptureFixture[str]
WHOLE = {"summary.json", "rounds.parquet", "clients.arrows", "plots/accuracy.png"}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run folder with checkpoints and a hidden file."""
    folder = tmp_path / "home" / "raysim" / "runs" / "quickstart" / "r1"
    for name, content in {
        "summary.json": b"{}",
        "rounds.parquet": os.urandom(200_000),
        "clients.arrows": b"rows",
        "plots/accuracy.png": b"png",
        "checkpoints/3/client.safetensors": b"weights",
        ".rounds.parquet.x": b"half-written",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def client(run_folder: Path, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """A cluster with the job j of the run."""
    log = PREFIX + json.dumps({"run_folder": str(run_folder)}) + "\n"
    found = use(monkeypatch, FakeClient(details("j"), logs={"j": log}))
    found.helper_log = tmp_path / "helper.log"
    return found


def names(folder: Path) -> set[str]:
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")]
    return {file.relative_to(folder).as_posix() for file in files}


def test_what_arrives_is_what_was_there(capfd: Capture, client: FakeClient, run_folder: Path) -> None:
    assert run(capfd, "fetch", "j")[1] == "runs/quickstart/r1: 4 files\n"
    here = Path("runs/quickstart/r1")
    assert names(here) == WHOLE
    for name in WHOLE:
        assert (here / name).read_bytes() == (run_folder / name).read_bytes()
    assert client.helper_log.read_text() == ""  # the folder is not kept in Ray's logs


def test_again_after_the_end(capfd: Capture, client: FakeClient, run_folder: Path) -> None:
    run(capfd, "fetch", "j")
    (run_folder / "clients.arrows").rename(run_folder / "clients.parquet")
    (run_folder / "summary.json").write_text('{"rounds": 3}')
    assert run(capfd, "fetch", "j")[0] == 0
    here = Path("runs/quickstart/r1")
    assert names(here) == WHOLE - {"clients.arrows"} | {"clients.parquet"}
    assert (here / "summary.json").read_text() == '{"rounds": 3}'


def test_checkpoints_when_asked_for(capfd: Capture, client: FakeClient) -> None:
    assert run(capfd, "fetch", "j", "--checkpoints", "-o", "here")[0] == 0
    assert names(Path("here")) == WHOLE | {"checkpoints/3/client.safetensors"}


def test_a_sweep_has_all_cells_without_checkpoints(capfd: Capture, client: FakeClient, run_folder: Path) -> None:
    facts = {"run_folder": str(run_folder.parent), "sweep": True}
    client.logs["j"] = PREFIX + json.dumps(facts) + "\n"
    assert run(capfd, "fetch", "j")[1] == "runs/quickstart: 4 files\n"
    assert names(Path("runs/quickstart")) == {f"r1/{name}" for name in WHOLE}


def test_a_folder_that_is_gone(capfd: Capture, client: FakeClient, run_folder: Path) -> None:
    run_folder.rename(run_folder.with_name("r0"))
    code, _, err = run(capfd, "fetch", "j")
    assert code == 1 and f"there is no folder {run_folder}" in err
    assert not Path("runs").exists()


def test_a_connection_that_breaks_changes_nothing(
    capfd: Capture, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tail_job_logs(job: str) -> AsyncIterator[str]:
        yield "raysim-archive-begin\n"
        raise aiohttp.ServerDisconnectedError

    monkeypatch.setattr(client, "tail_job_logs", tail_job_logs)
    code, _, err = run(capfd, "fetch", "j")
    assert code == 1 and "disconnected" in err and "fetch again" in err
    assert not Path("runs").exists()
