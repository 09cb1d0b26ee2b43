"""A password or token in an address is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from raysim.cli.main import main
from tests.engine.scenarios import plain_digits as digits

SECRET = "hunter2"
USER = "ada"


def holding(folder: Path) -> list[str]:
    """Files below `folder` that hold the secret."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("command", "item"),
    [
        ("launch", f"tracking.uri=http://{USER}:{SECRET}@host"),
        ("submit", f"tracking.uri=http://{USER}:{SECRET}@host"),
        ("validate", f"tracking.uri=http://host:1?token={SECRET}"),
        ("validate", f"checkpoint.folder=s3://{USER}:a/{SECRET}@bucket/x"),
    ],
)
def test_a_secret_is_refused(command: str, item: str, workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (workplace / "tiny.yaml").write_text(yaml.safe_dump(digits()))
    with pytest.raises(SystemExit) as ended:
        main([command, "tiny.yaml", "--set", item])
    told = capfd.readouterr()
    assert ended.value.code == 2
    assert SECRET not in told.out + told.err
    assert told.err.startswith("raysim: ")
    assert told.err.count("\n") == 1
    assert not holding(workplace)
    if item.startswith("tracking.uri=http"):
        assert "MLFLOW_TRACKING_PASSWORD" in told.err


def test_a_secret_that_is_overridden_is_refused(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The run folder keeps the text of the scenario as it was given."""
    scenario = digits(rounds=1, tracking={"uri": f"http://{USER}:{SECRET}@host"})
    (workplace / "tiny.yaml").write_text(yaml.safe_dump(scenario))
    with pytest.raises(SystemExit) as ended:
        main(["launch", "tiny.yaml", "--set", "tracking.uri=sqlite:///mlflow.db"])
    told = capfd.readouterr().err
    assert ended.value.code == 2 and "password" in told and SECRET not in told
    assert [path.name for path in workplace.iterdir()] == ["tiny.yaml"]


def test_a_secret_in_the_variable_is_refused(
    workplace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "tiny.yaml").write_text(yaml.safe_dump(digits(rounds=1)))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{USER}:{SECRET}@host")
    with pytest.raises(SystemExit, match="2"):
        main(["launch", "tiny.yaml"])
    told = capfd.readouterr()
    assert "MLFLOW_TRACKING_PASSWORD" in told.err and SECRET not in told.out + told.err
    assert not holding(workplace)


def test_a_secret_in_a_clusters_address(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["jobs", "--address", f"http://{USER}:{SECRET}@host:8265"])
    assert ended.value.code == 2
    told = capfd.readouterr().err
    assert SECRET not in told and "--address: http://host:8265" in told and "RAY_AUTH_TOKEN" in told
