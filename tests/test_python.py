"""raysim as a Python package: its names, and what `run` takes and gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import raysim
from raysim.algorithms.standalone import Standalone
from tests.engine.scenarios import plain_digits as digits


def test_run_takes_a_file_and_gives_frames(workplace: Path) -> None:
    (workplace / "tiny.yaml").write_text(yaml.safe_dump(digits(checkpoint={"every": 0})))
    result = raysim.run("tiny.yaml", sets=["rounds=2"], quiet=True)
    assert list(result.rounds["round"]) == [0, 1, 2]
    assert result.rounds["accuracy/all"].iloc[-1] == result.summary["final"]["accuracy/all"]
    assert set(result.clients["client"]) == set(range(8))
    assert len(result.clients.query("participated")) == 2 * 4


def test_run_takes_a_mapping_with_overrides(workplace: Path) -> None:
    with pytest.raises(
        raysim.ScenarioError, match=r"^--set rounds=0: rounds: 0 given; allowed: a whole number at least 1 and"
    ):
        raysim.run(digits(), sets=["rounds=0"])
    with pytest.raises(
        raysim.ScenarioError, match=r"^scenario: rounds: 0 given; allowed: a whole number at least 1 and"
    ):
        raysim.run(digits(rounds=0))
    assert list(workplace.iterdir()) == []


def test_run_says_what_to_give(workplace: Path) -> None:
    with pytest.raises(raysim.ScenarioError, match="MyClass"):
        raysim.run(digits(algorithm={"name": Standalone()}))


def test_a_scenario_is_whole_and_typed(workplace: Path) -> None:
    from raysim.algorithms.fedgh import FedGH
    from raysim.data.partition import Dirichlet

    scenario = raysim.Scenario.load(
        digits(checkpoint={"every": 0}),
        ["algorithm={name: fedgh, server_epochs: 2}", "data.partition={name: dirichlet, alpha: 0.7}", "rounds=1"],
    )
    assert scenario.algorithm == FedGH(server_epochs=2)
    assert scenario.data.partition == Dirichlet(alpha=0.7)
    assert (scenario.rounds, scenario.clients.number, scenario.data.split) == (1, 8, "pooled811")
    run = scenario.run(quiet=True)
    assert run.status == "finished"
    assert run.scenario.algorithm == scenario.algorithm
    assert run.scenario.resolved == scenario.resolved


def test_overrides_belong_to_what_is_loaded_here() -> None:
    loaded = raysim.Scenario.load(digits())
    with pytest.raises(raysim.ScenarioError, match="already loaded"):
        raysim.run(loaded, sets=["rounds=1"])
