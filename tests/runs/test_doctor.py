"""Each finding of `raysim doctor` says what is there; the checks are given machines with faults."""

from __future__ import annotations

import importlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from raysim.runs import doctor
from tests.cli.command import run


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("RAY_ADDRESS", "RAYSIM_DATA", "RAY_TMPDIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_this_machine_can_run(capfd: pytest.CaptureFixture[str]) -> None:
    """The tests run here, so that a launch can work, and nothing is left in the folder."""
    code, out, _ = run(capfd, "doctor", "--no-run")
    assert code == 0
    words = [
        "Python",
        "packages",
        "torchvision",
        "CPUs",
        "GPUs",
        "memory",
        "shared memory",
        "open files",
        "disk",
        "data",
    ]
    assert [line[9:24].strip() for line in out.splitlines() if line[:1] != " "] == [*words, "MLflow", "Ray", "Ctrl-C"]
    assert not list(Path().iterdir())


def test_packages() -> None:
    missing = doctor.packages(lambda: [Requirement("no-such-package>=1")])
    assert (missing.verdict, missing.text) == (
        "problem",
        "not installed: no-such-package; run pip install no-such-package",
    )
    old = doctor.packages(lambda: [Requirement("click<1"), Requirement("numpy>=1")])
    assert old.verdict == "note" and old.text.startswith("outside the supported versions: click ")
    assert old.text.endswith(" (supported: <1)")
    assert doctor.packages().verdict == "ok"


def test_torch_and_torchvision_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist\nmore")

    monkeypatch.setattr(importlib, "import_module", fail)
    found = doctor.torchvision()
    assert found.verdict == "problem"
    assert "do not fit together (operator torchvision::nms does not exist); install both" in found.text


@pytest.mark.parametrize(
    ("listed", "verdict", "text"),
    [
        ("GPU 0: NVIDIA H100 (UUID: x)", "note", "cannot use GPU 0: NVIDIA H100 (UUID: x): its driver"),
        ("", "note", "nvidia-smi finds none"),
    ],
)
def test_a_gpu_that_torch_cannot_use(listed: str, verdict: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    done = SimpleNamespace(returncode=0, stdout=listed, stderr="")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *words, **options: done)
    found = doctor.gpus()
    assert found.verdict == verdict and text in found.text


def test_little_of_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 1 << 30)
    assert doctor.memory().verdict == "note" and doctor.memory().text.startswith("1.0 GiB of ")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(total=64 << 20, free=64 << 20))
    assert doctor.shared_memory(tmp_path).text.startswith(f"{tmp_path} has 0.1 GiB: Ray puts shared data into files")
    assert doctor.disk().verdict == "note" and doctor.disk().text.endswith("a run that cannot write ends")
    assert doctor.shared_memory(tmp_path / "none").verdict == "ok"
    few = SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda which: (1024, 4096))
    monkeypatch.setattr(doctor, "resource", few)
    assert doctor.open_files().text.startswith("1024 per process, too few for hundreds of actors")


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "joins the cluster at 10.0.0.1:6379" in doctor.ray().text
    monkeypatch.setenv("RAYSIM_DATA", "no/such/folder")
    assert doctor.data_folder().text == "RAYSIM_DATA names no/such/folder, and there is no such folder"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    found = doctor.mlflow()
    assert found.verdict == "note"
    assert found.text.startswith("http://127.0.0.1:9 does not answer (connection refused)")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert "SIGINT is ignored here" in doctor.interrupts().text


def test_a_problem_is_exit_code_1_and_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/no/such/folder")
    code, out, _ = run(capfd, "doctor")
    assert code == 1
    words = " ".join(out.split())
    assert "problem disk Ray's temporary folder (/no/such/folder) cannot be written; use another one" in words
    assert "of the quickstart works" not in words


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_the_trial_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.trial().text.startswith("a round of the quickstart works: ")
    assert not list(Path().iterdir())

    def fail(*_: object, **__: object) -> None:
        raise doctor.RaysimError("Ray did not start")

    monkeypatch.setattr("raysim.runs.run.run", fail)
    assert doctor.trial() == doctor.Finding("a run", "problem", "Ray did not start")
