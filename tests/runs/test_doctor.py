"""Each finding of `raysim doctor` says what is there; the checks are given machines with faults."""

from __future__ import annotations

import importlib
import shutil
import signal
from collections.abc import Iterator
from email.message import Message
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
        "torch",
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
        "not installed: no-such-package; run pip install 'no-such-package>=1'",
    )
    extra = doctor.packages(lambda: [Requirement("no-such-package[more]>=1,<2")])
    assert extra.text == "not installed: no-such-package; run pip install 'no-such-package[more]<2,>=1'"
    old = doctor.packages(lambda: [Requirement("click<1"), Requirement("numpy>=1")])
    assert old.verdict == "note" and old.text.startswith("outside the supported versions: click ")
    assert old.text.endswith(" (supported: <1); run pip install 'click<1'")
    assert doctor.packages().verdict == "ok"


@pytest.mark.parametrize(("version", "verdict"), [((3, 11), "ok"), ((3, 13), "ok"), ((3, 14), "note")])
def test_a_python_that_is_not_tested(version: tuple[int, int], verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    classifiers = Message()
    for text in ("Python :: 3", "Python :: 3.11", "Python :: 3.12", "Python :: 3.13"):
        classifiers["Classifier"] = f"Programming Language :: {text}"
    monkeypatch.setattr(doctor.metadata, "metadata", lambda name: classifiers)
    found = doctor.python(version)
    assert found.verdict == verdict
    assert found.text.endswith("; raysim is tested with 3.11 to 3.13") == (verdict == "note")


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("torch", "torch cannot be imported (libcudart.so.13: cannot open); install both"),
        ("torchvision", "torchvision cannot be imported with this torch (libcudart.so.13: cannot open); install both"),
    ],
)
def test_torch_that_cannot_be_imported(broken: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        if name == broken:
            raise OSError("libcudart.so.13: cannot open\nmore")

    monkeypatch.setattr(importlib, "import_module", fail)
    found = doctor.torch()
    assert found.verdict == "problem" and text in found.text


def test_a_check_that_fails_is_a_problem_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> doctor.Finding:
        raise ImportError("libcudart.so.13: cannot open")

    monkeypatch.setattr(doctor, "gpus", fail)
    found = {one.what: one for one in doctor.findings()}
    text = "cannot be checked (ImportError: libcudart.so.13: cannot open)"
    assert found["GPUs"] == doctor.Finding("GPUs", "problem", text)
    assert found["Ctrl-C"].verdict == "ok"


@pytest.mark.parametrize(
    ("listed", "cuda", "verdict", "text"),
    [
        ("NVIDIA H100, 525.60\n", "13.0", "note", "(CUDA 13.0) cannot use the GPUs NVIDIA H100; driver 525.60 may"),
        ("NVIDIA H100, 525.60\n", None, "note", "(no CUDA) cannot use the GPUs NVIDIA H100; install a build"),
        ("", "13.0", "note", "nvidia-smi finds no GPU"),
    ],
)
def test_a_gpu_that_torch_cannot_use(
    listed: str, cuda: str | None, verdict: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(monkeypatch, listed, cuda, usable=False)
    found = doctor.gpus()
    assert found.verdict == verdict and text in found.text


def test_a_gpu_and_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, "NVIDIA H100, 580.65\nNVIDIA H100, 580.65\n", "13.0", usable=True)
    assert doctor.gpus() == doctor.Finding("GPUs", "ok", "H100, H100; driver 580.65, torch with CUDA 13.0")


def test_an_accelerator_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    use_gpus(monkeypatch, "", None, usable=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda: SimpleNamespace(has_fp64=True))
    text = (
        "2 devices of torch's type xpu; raysim is untested on such devices, and actors use them only if Ray was "
        "started with `ray start --num-gpus`"
    )
    assert doctor.gpus() == doctor.Finding("GPUs", "note", text)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda: SimpleNamespace(has_fp64=False))
    assert "xpu" not in doctor.gpus().text  # raysim sums in float64
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert "xpu" not in doctor.gpus().text


def use_gpus(monkeypatch: pytest.MonkeyPatch, listed: str, cuda: str | None, usable: bool) -> None:
    """Two GPUs that nvidia-smi lists so, and that torch can use or not."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    done = SimpleNamespace(returncode=0, stdout=listed, stderr="")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *words, **options: done)


def test_little_of_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 1 << 30)
    assert doctor.memory().verdict == "note" and doctor.memory().text.startswith("1.0 GiB of ")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(total=64 << 20, free=64 << 20))
    assert doctor.shared_memory(tmp_path).text.startswith(
        f"{tmp_path} has only 0.1 GiB, so Ray keeps shared data in files"
    )
    assert doctor.disk().verdict == "note" and doctor.disk().text.endswith("; free some space, or runs may fail")
    assert doctor.shared_memory(tmp_path / "none").verdict == "ok"
    few = SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda which: (1024, 4096))
    monkeypatch.setattr(doctor, "resource", few)
    assert doctor.open_files().text.startswith("1024 per process, too few for hundreds of actors")


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert doctor.ray().verdict == "problem" and "127.0.0.1:9" in doctor.ray().text  # `launch` refuses it, too
    monkeypatch.setenv("RAYSIM_DATA", "")  # a run ignores it, too
    assert doctor.data_folder().text.startswith("RAYSIM_DATA is not set; ")
    monkeypatch.setenv("RAYSIM_DATA", "no/such/folder")
    assert (
        doctor.data_folder().text
        == "RAYSIM_DATA is no/such/folder, but this folder does not exist; set RAYSIM_DATA to another folder"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    found = doctor.mlflow()
    assert found.verdict == "problem"  # `launch` refuses this store, too
    assert found.text.startswith("MLFLOW_TRACKING_URI: http://127.0.0.1:9 does not answer (connection refused)")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert "this process ignores Ctrl-C" in doctor.interrupts().text


def test_a_server_that_refuses_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(uri: str) -> None:
        raise OSError("API request failed with error code 401")

    monkeypatch.setattr(doctor, "check_uri", lambda: "http://127.0.0.1:9")
    monkeypatch.setattr(doctor, "ask", refuse)
    found = doctor.mlflow()
    assert found.verdict == "note"
    assert found.text.startswith("http://127.0.0.1:9 refuses requests (the server requires a user name and password")
    assert found.text.endswith("you can start runs, but they will warn that data is missing in MLflow")


def test_a_problem_is_exit_code_1_and_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/no/such/folder")
    code, out, _ = run(capfd, "doctor")
    assert code == 1
    words = " ".join(out.split())
    assert (
        "problem disk Ray's temporary folder (/no/such/folder) cannot be written; set RAY_TMPDIR to a writable folder"
        in words
    )
    assert "round of quickstart worked" not in words


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_the_trial_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.trial().text.startswith("one round of quickstart worked; ")
    assert not list(Path().iterdir())

    def fail(*_: object, **__: object) -> None:
        raise doctor.RaysimError("Ray did not start")

    monkeypatch.setattr("raysim.runs.run.run", fail)
    assert doctor.trial() == doctor.Finding("a run", "problem", "Ray did not start")
    monkeypatch.setattr("raysim.runs.run.run", lambda *_, **__: 1 / 0)
    assert doctor.trial() == doctor.Finding("a run", "problem", "ZeroDivisionError: division by zero")
