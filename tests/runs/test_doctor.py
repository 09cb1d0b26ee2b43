"""What `raysim doctor` shows of a machine, and what it calls a problem."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysim.runs import doctor
from tests.cli.command import run


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield


def test_this_machine_can_run(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "doctor")
    assert code == 0
    words = ["versions", "GPUs", "shared memory", "open files", "MLflow", "Ray"]
    assert [line[9:24].strip() for line in out.splitlines() if line[:1] != " "] == words
    assert not list(Path().iterdir())


def test_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert doctor.gpus().verdict == "note"


def test_little_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=64 << 20, free=64 << 20))
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: (1024, 4096))
    (memory,), (files,) = doctor.shared_memory(), doctor.open_files()
    assert memory.verdict == "note" and "--shm-size" in memory.text
    assert files.verdict == "note" and "ulimit" in files.text


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [("MLFLOW_TRACKING_URI", "http://127.0.0.1:9", "MLflow"), ("RAY_ADDRESS", "127.0.0.1:9", "Ray")],
)
def test_an_address_that_does_not_answer_is_a_problem(
    name: str, value: str, what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    code, out, _ = run(capfd, "doctor")
    assert code == 1
    assert [line.split()[1] for line in out.splitlines() if line.startswith("problem")] == [what]
