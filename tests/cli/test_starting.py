"""What `raysim init` and `raysim new` write is whole: it loads, runs, and its own test passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import raysim
from raysim.cli.main import main
from tests.conftest import REPOSITORY
from tests.structure import files


def test_init_copies_every_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["init", "mine"])
    here = {path.relative_to("scenarios") for path in files(".yaml") if path.parts[0] == "scenarios"}
    assert {path.relative_to("mine") for path in Path("mine").rglob("*.yaml")} == here
    assert "raysim launch mine/quickstart.yaml" in capsys.readouterr().out
    assert raysim.Scenario.load("mine/quickstart.yaml").name == "quickstart"
    with pytest.raises(SystemExit, match="2"):
        main(["init", "mine"])
    assert "not empty" in capsys.readouterr().err


@pytest.mark.large
def test_what_new_writes_passes_its_own_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = {"algorithm": "my_method", "model": "path", "data": "my_data"}
    for kind, name in kinds.items():
        main(["new", kind, name])
        with pytest.raises(SystemExit, match="2"):
            main(["new", kind, name])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout  # two of each


def test_capital_letters_are_those_of_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "algorithm", "FedBABU"])
    assert {path.name for path in tmp_path.iterdir()} == {"fedbabu.py", "fedbabu.yaml", "test_fedbabu.py"}
    assert raysim.Scenario.load("fedbabu.yaml").method == "FedBABU"


def test_the_wheel_has_methods_and_scenarios() -> None:
    """As links, which a wheel follows: an installed raysim has what this checkout has."""
    for name in ("algorithms", "scenarios"):
        assert (REPOSITORY / "raysim" / name).resolve() == REPOSITORY / name
