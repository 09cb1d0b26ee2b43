"""What a user can get wrong around a scenario: one sentence, exit code 2, no actor, nothing half-written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raysim.cli.main import main
from raysim.common.errors import ScenarioError
from tests.conftest import REPOSITORY

QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")


def launch(capfd: pytest.CaptureFixture[str], *sets: str, scenario: str = QUICKSTART) -> tuple[int, str]:
    args = ["launch", scenario]
    for item in sets:
        args += ["--set", item]
    with pytest.raises(SystemExit) as ended:
        main(args)
    return int(str(ended.value.code)), capfd.readouterr().err


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that gets as far as Ray fails the test."""

    def connect(*rest: object) -> bool:
        raise AssertionError("Ray was started")

    import raysim.engine.ray.session as ray_session

    monkeypatch.setattr(ray_session, "connect", connect)
    monkeypatch.setitem(sys.modules, "ray", None)  # as in a new process: no Ray to join


def refused(capfd: pytest.CaptureFixture[str], workplace: Path, *sets: str) -> str:
    code, told = launch(capfd, *sets)
    assert code == 2, told
    assert told.count("\n") == 1, told
    assert not list(workplace.rglob("summary.json"))
    return told


@pytest.mark.usefixtures("no_ray")
class TestBeforeRay:
    def test_a_folder_without_the_data_set(self, capfd: pytest.CaptureFixture[str], workplace: Path) -> None:
        told = refused(capfd, workplace, "data.name=cifar100", f"data.root={workplace}", "clients.models=[cnn1]")
        assert "data.root" in told
        assert str(workplace) in told

    def test_a_tracking_server_that_does_not_answer(self, capfd: pytest.CaptureFixture[str], workplace: Path) -> None:
        told = refused(capfd, workplace, "tracking.uri=http://127.0.0.1:9")
        assert "tracking.uri" in told
        assert "http://127.0.0.1:9" in told

    def test_a_place_for_checkpoints_that_is_a_file(self, capfd: pytest.CaptureFixture[str], workplace: Path) -> None:
        (workplace / "taken").write_text("")
        told = refused(capfd, workplace, "checkpoint.folder=taken")
        assert "checkpoint.folder: " in told and "taken" in told
        assert not (workplace / "runs").exists()


def test_a_cluster_that_is_not_there_leaves_no_run(
    capfd: pytest.CaptureFixture[str], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*rest: object) -> bool:
        raise ScenarioError("RAY_ADDRESS: no Ray cluster answers at nowhere:1")

    monkeypatch.setattr("raysim.engine.ray.session.connect", connect)
    monkeypatch.setitem(sys.modules, "ray", None)  # as in a new process
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:1")
    assert "no Ray cluster answers at nowhere:1" in refused(capfd, workplace, "rounds=1")
    assert not (workplace / "runs").exists()


def test_the_dry_run_says_that_data_is_missing_or_refuses_as_a_run_would(
    capfd: pytest.CaptureFixture[str], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ["--set", "data.name=fashion_mnist", "--set", "clients.models=[fmnist_cnn1]"]
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delenv("RAYSIM_DATA", raising=False)
    monkeypatch.setenv("RAYSIM_CACHE", str(workplace))
    main(["launch", QUICKSTART, "--dry-run", *sets])
    assert "fashion_mnist" in capfd.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["launch", QUICKSTART, "--dry-run", *sets, "--set", f"data.root={workplace}"])
    assert ended.value.code == 2
    assert "data.root" in capfd.readouterr().err
