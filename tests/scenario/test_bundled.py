"""The bundled scenarios by name, as a user without a checkout gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

import raysim
from raysim.scenario.bundled import bundled_names, scenario_file
from raysim.study.definition import load_sweep
from tests.cli.command import run
from tests.conftest import REPOSITORY


def test_every_scenario_has_a_name() -> None:
    files = {path.relative_to(REPOSITORY / "scenarios") for path in (REPOSITORY / "scenarios").rglob("*.yaml")}
    assert set(bundled_names()) == {path.with_suffix("").as_posix() for path in files}


def test_a_name_stands_for_the_file(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert raysim.Scenario.load("quickstart", ["rounds=3"]).rounds == 3
    named, by_path = load_sweep("sweeps/digits"), load_sweep(REPOSITORY / "scenarios/sweeps/digits.yaml")
    assert [cell.id for cell in named.cells] == [cell.id for cell in by_path.cells]
    code, out, error = run(capfd, "validate", "quickstart", "--set", "rounds=3")
    assert code == 0 and "/quickstart.yaml: valid" in error
    assert "rounds: 3\n" in out
    code, out, _ = run(capfd, "sweep", "sweeps/digits", "--status")
    assert (code, out.splitlines()[-1]) == (0, "240 waiting")


def test_the_users_own_file_goes_first(workplace: Path) -> None:
    Path("quickstart").write_text("rounds: 7\n")
    assert scenario_file("quickstart") == Path("quickstart")
    assert scenario_file("cifar100_hetero").is_file()


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("quikstart", "'quickstart'"),
        ("scenarios/quickstart.yaml", "'quickstart'"),
    ],
)
def test_a_missing_file(given: str, hint: str, workplace: Path) -> None:
    for load in (raysim.Scenario.load, load_sweep):
        with pytest.raises(raysim.ScenarioError, match=f"{given}: there is no such file.*{hint}"):
            load(given)
