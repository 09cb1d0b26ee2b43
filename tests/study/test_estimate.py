"""The seconds of a dry run, from a few training steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysim.scenario.scenario import Scenario
from raysim.study.cells import CellState
from raysim.study.definition import load_sweep
from raysim.study.status import estimate, print_plan
from tests.study.test_display import sweep_of


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods whose steps are measured; a run of each takes 40 s."""
    methods: list[str] = []

    def previewed(scenario: Scenario) -> SimpleNamespace:
        assert scenario.backend == "in_process"
        methods.append(scenario.algorithm_name)
        return SimpleNamespace(total_s=40.0)

    monkeypatch.setattr("raysim.study.status.preview", previewed)
    return methods


def test_seconds_are_those_of_the_rounds_that_are_left(workplace: Path, measured: list[str]) -> None:
    sweep = sweep_of(workplace, seeds="1..2", grid={"algorithm.name": ["fedgh", "standalone"]}, set=["rounds=4"])
    assert estimate([(cell, sweep, left) for cell, left in zip(sweep.cells, (4, 1, 4, 0), strict=True)]) == (
        [40.0, 10.0, 40.0, 0.0],
        {},
    )
    assert measured == ["fedgh", "standalone"]  # once for all seeds


@pytest.mark.usefixtures("measured")
def test_the_plan_adds_up_what_is_left(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 s of the second, 40 s of the fourth and, if it runs again, 40 s of the third, in two tasks."""
    sweep = sweep_of(workplace, seeds="1..4", set=["rounds=4"])
    ends: list[tuple[Any, ...]] = [("done", None, 4), ("interrupted", None, 2), ("failed", None, 0), ("waiting",)]
    states = [CellState(cell, *end) for cell, end in zip(sweep.cells, ends, strict=True)]
    monkeypatch.setattr("raysim.study.status.states_of", lambda sweep: states)
    for retry_failed, time in ((False, "about 40.0 s"), (True, "about 50.0 s")):
        print_plan(load_sweep("sweep.yaml"), {one.cell.name for one in states}, 2, retry_failed)
        lines = capsys.readouterr().out.splitlines()
        assert lines[2].split() == ["interrupted", "2/4", "seed=2"]
        assert time in lines[-1]
