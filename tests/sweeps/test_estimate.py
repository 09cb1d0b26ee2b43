"""The seconds of a dry run: from finished cells if there are some, else from a few training steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysim.common.errors import ScenarioError
from raysim.runs.run import run
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import placed
from raysim.sweeps.definition import load_sweep
from raysim.sweeps.state import CellState, states_of
from raysim.sweeps.status import PHASES, estimate, print_plan
from tests.sweeps.test_display import sweep_of


def test_seconds_are_those_of_a_run_in_one_process(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def previewed(scenario: Scenario) -> SimpleNamespace:
        assert scenario.backend == "in_process"
        measured.append(scenario.algorithm_name)
        return SimpleNamespace(total_s=29.0)

    monkeypatch.setattr("raysim.sweeps.status.preview", previewed)
    sweep = sweep_of(workplace, seeds="1..2", grid={"algorithm.name": ["fedgh", "standalone"]})
    assert estimate(sweep, states_of(sweep))[0] == [29.0] * 4
    assert measured == ["fedgh", "standalone"]  # once for all seeds


def test_finished_cells_are_the_better_source(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of(workplace, seeds="1..3", set=["rounds=1"])
    results = [run(placed(cell, sweep), quiet=True) for cell in sweep.cells[:2]]
    monkeypatch.delattr("raysim.sweeps.status.preview")  # nothing is to be measured
    seconds = [sum(result.summary["seconds"][phase] for phase in PHASES) for result in results]
    assert estimate(sweep, states_of(sweep))[0][2] == pytest.approx(sum(seconds) / 2)


def test_a_cell_that_can_never_run_is_named(workplace: Path) -> None:
    sweep = sweep_of(workplace, grid={"clients.count": [5000, 8]})  # too many for three classes each
    (unknown, known), errors = estimate(sweep, states_of(sweep))
    assert unknown is None and known is not None
    assert [*errors] == ["clients.count=5000"] and isinstance(errors["clients.count=5000"], ScenarioError)


@pytest.fixture
def states(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> list[CellState]:
    """One cell that is done, one half done, one that failed, and one of unknown length."""
    sweep = sweep_of(workplace, seeds="1..4", set=["rounds=4"])
    ends: list[tuple[Any, ...]] = [("done", None, 4), ("interrupted", None, 2), ("failed", None, 0), ("waiting",)]
    states = [CellState(cell, *end) for cell, end in zip(sweep.cells, ends, strict=True)]
    monkeypatch.setattr("raysim.sweeps.status.states_of", lambda sweep: states)
    monkeypatch.setattr("raysim.sweeps.status.estimate", lambda sweep, states: ([10.0, 10.0, 10.0, None], {}))
    return states


@pytest.mark.parametrize(("retry_failed", "time"), [(False, "about 5.00 s"), (True, "about 10.0 s")])
def test_the_plan_adds_up_what_is_left(
    states: list[CellState], capsys: pytest.CaptureFixture[str], retry_failed: bool, time: str
) -> None:
    """5 s of the second and, if it runs again, 10 s of the third: two tasks need as long as the longer one."""
    print_plan(load_sweep("sweep.yaml"), {one.cell.name for one in states}, 2, retry_failed)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["interrupted", "2/4", "10.0", "s", "seed=2"]
    assert lines[4].split() == ["waiting", "0/4", "?", "seed=4"]
    assert time in lines[-1] and "1 cell of unknown length" in lines[-1]
