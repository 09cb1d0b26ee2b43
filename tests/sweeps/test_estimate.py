"""The seconds of a dry run: from finished cells if there are some, else from a few training steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysim.runs.run import run
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import Cell, placed
from raysim.sweeps.display import print_plan
from raysim.sweeps.estimate import PHASES, Estimator
from raysim.sweeps.state import CellState, states_of
from tests.sweeps.test_display import sweep_of


def test_seconds_are_those_of_a_run_in_one_process(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def previewed(scenario: Scenario) -> SimpleNamespace:
        assert scenario.backend == "in_process"
        measured.append(scenario.algorithm_name)
        return SimpleNamespace(total_s=29.0)

    monkeypatch.setattr("raysim.sweeps.estimate.preview", previewed)
    sweep = sweep_of(workplace, seeds="1..2", grid={"algorithm.name": ["fedgh", "standalone"]})
    assert Estimator(sweep).of(states_of(sweep)) == [29.0] * 4
    assert measured == ["fedgh", "standalone"]  # once for all seeds


def test_finished_cells_are_the_better_source(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of(workplace, seeds="1..3", set=["rounds=1"])
    results = [run(placed(cell, sweep), quiet=True) for cell in sweep.cells[:2]]
    monkeypatch.delattr("raysim.sweeps.estimate.preview")  # nothing is to be measured
    seconds = [sum(result.summary["seconds"][phase] for phase in PHASES) for result in results]
    assert Estimator(sweep).of(states_of(sweep))[2] == pytest.approx(sum(seconds) / 2)


def test_a_cell_that_can_never_run_is_named(workplace: Path) -> None:
    sweep = sweep_of(workplace, grid={"clients.count": [5000, 8]})  # too many for three classes each
    estimator = Estimator(sweep)
    unknown, known = estimator.of(states_of(sweep))
    assert unknown is None and known is not None
    (note,) = estimator.notes
    assert note.startswith("clients.count=5000: ") and [*estimator.refused] == ["clients.count=5000"]


def test_the_plan_adds_up_what_is_left(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, half, new, strange = sweep_of(workplace, seeds="1..4", set=["rounds=4"]).cells

    def state(cell: Cell, *rest: Any) -> CellState:
        return CellState(cell, *rest)

    states = [state(done, "done", None, 4), state(half, "interrupted", None, 2), state(new, "waiting")]
    print_plan([*states, state(strange, "waiting")], [10.0, 10.0, 10.0, None], 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["interrupted", "2/4", "10.0", "s", "seed=2"]
    assert lines[4].split() == ["waiting", "0/4", "?", "seed=4"]
    # 5 s of the second, 10 s of the third: two tasks need as long as the longer one.
    assert "about 10.0 s" in lines[-1] and "1 cell of unknown length" in lines[-1]


def test_failed_cells_are_planned_only_if_they_run_again(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, failed = sweep_of(workplace, grid={}, seeds="1..2", set=["rounds=4"]).cells
    states = [CellState(done, "done", None, 4), CellState(failed, "failed", None, 1)]
    print_plan(states, [10.0] * 2, 2)
    assert capsys.readouterr().out.splitlines()[-1] == "1 done, 1 failed"
    print_plan(states, [10.0] * 2, 2, retry_failed=True)
    assert "estimated time" in capsys.readouterr().out
