"""What a dry run says of time and bytes: from finished cells if there are some, else from a few steps and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raysim.common.shards import Shards
from raysim.engine.plan import Plan
from raysim.runs.data import RunData
from raysim.runs.plan import make_plan
from raysim.runs.run import run
from raysim.scenario.scenario import Scenario
from raysim.sweeps import estimate
from raysim.sweeps.cells import Cell, placed
from raysim.sweeps.estimate import FEW, PHASES, Cost, Estimator
from raysim.sweeps.listing import print_plan
from raysim.sweeps.state import CellState, states_of
from tests.conftest import said
from tests.engine.scenarios import plain_digits as digits
from tests.sweeps.test_display import sweep_of


def test_bytes_are_those_of_a_run(workplace: Path, caplog: pytest.LogCaptureFixture) -> None:
    sweep = sweep_of(workplace, seeds="1..2", grid={"algorithm.name": ["lg_fedavg", "standalone"]})
    first, second, *alone = Estimator(sweep).of(states_of(sweep))
    assert [text.split()[1] for text in said(caplog)] == ["lg_fedavg", "standalone"]  # once for all seeds
    assert first == second and alone == [Cost(first.seconds, 0.0)] * 2  # the same steps, and nothing is sent
    result = run(placed(sweep.cells[0], sweep), quiet=True)
    assert first.sent == result.summary["final"]["comm/total_bytes"]
    assert first.seconds and first.seconds > 0


def test_bytes_of_the_middle_and_the_last_round_stand_for_all_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 participants in 7 rounds: 10 bytes in the first, and the mean of 20 and 40 in each of the six others."""
    asked: list[int] = []

    def measured(plan: Any, data: Any, cohorts: Mapping[int, Sequence[int]]) -> list[float]:
        asked.extend(cohorts)
        return [10.0, 20.0, 40.0]

    monkeypatch.setattr(estimate, "_bytes_per_client", measured)
    assert estimate._probed(Scenario.load(digits(rounds=7))) == 4 * (10 + 6 * 30)
    assert asked == [1, 4, 7]


def test_seconds_are_those_of_a_run_in_one_process(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def previewed(scenario: Scenario) -> SimpleNamespace:
        assert scenario.backend == "in_process"
        return SimpleNamespace(total_s=29.0)

    monkeypatch.setattr(estimate, "preview", previewed)
    monkeypatch.setattr(estimate, "_probed", lambda scenario: 7.0)
    sweep = sweep_of(workplace, grid={}, set=["rounds=3"])
    (cell,) = sweep.cells
    assert Estimator(sweep).of([CellState(cell, "waiting")]) == [Cost(29.0, 7.0)]
    assert Estimator(sweep).seconds_per_round(sweep.cells) == {cell.name: pytest.approx(29 / 3)}


def test_finished_cells_are_the_better_source(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of(workplace, seeds="1..3", set=["rounds=1"])
    results = [run(placed(cell, sweep), quiet=True) for cell in sweep.cells[:2]]
    monkeypatch.delattr("raysim.sweeps.estimate.preview")  # nothing is to be measured
    costs = Estimator(sweep).of(states_of(sweep))
    seconds = [sum(result.summary["seconds"][phase] for phase in PHASES) for result in results]
    assert costs[2].seconds == pytest.approx(sum(seconds) / 2)
    assert costs[2].sent == results[0].summary["final"]["comm/total_bytes"]


def test_what_cannot_be_estimated_is_said(workplace: Path) -> None:
    sweep = sweep_of(workplace, grid={"clients.count": [5000, 8]})  # too many for three classes each
    estimator = Estimator(sweep)
    unknown, known = estimator.of(states_of(sweep))
    assert unknown == Cost(None, None) and known.seconds is not None
    (note,) = estimator.notes
    assert note.startswith("clients.count=5000: ")


def test_the_plan_adds_up_what_is_left(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, half, new, strange = sweep_of(workplace, seeds="1..4", set=["rounds=4"]).cells

    def state(cell: Cell, *rest: Any) -> CellState:
        return CellState(cell, *rest)

    states = [state(done, "done", None, 4), state(half, "interrupted", None, 2), state(new, "waiting")]
    print_plan([*states, state(strange, "waiting")], [Cost(10.0, 1024.0)] * 3 + [Cost(None, None)], 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["interrupted", "2/4", "10.0", "s", "1.00", "KiB", "seed=2"]
    assert lines[4].split() == ["waiting", "0/4", "?", "?", "seed=4"]
    # 5 s of the second, 10 s of the third: two workers need as long as the longer one.
    # And 5 s to start the workers, and 0.6 s to start each of three cells, two at a time.
    assert lines[-1] == (
        "estimated time, if 2 cells run at a time on an idle machine: about 15.9 s. This includes 5.90 s to start "
        "the processes (once) and 3 cells. Not included: 1 cell of unknown length."
    )


@pytest.mark.parametrize(
    "method",
    [{"name": "hks", "warmup": 2}, {"name": "fedcache"}, {"name": "fd"}, {"name": "lg_fedavg"}],
    ids=lambda m: m["name"],
)
def test_bytes_of_clients_with_many_samples(method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients train on few of their samples; the bytes are those of training on all, also if each sample has a part."""
    content = digits(rounds=6, algorithm=method, clients={"count": 3, "models": ["digits_mlp64"]})
    plan, data = make_plan(Scenario.load(content))
    cohorts = {1: [0, 1], 4: [0, 2], 6: [1, 2]}
    assert min(plan.train.size_N) > 2 * FEW
    trained: list[int] = []
    measured = estimate._measure_bytes

    def watch(one: Plan, data: RunData, train: Shards, given: Mapping[int, Sequence[int]]) -> list[float]:
        trained.append(max(train.size_N))
        return measured(one, data, train, given)

    monkeypatch.setattr(estimate, "_measure_bytes", watch)
    assert estimate._bytes_per_client(plan, data, cohorts) == measured(plan, data, plan.train, cohorts)
    assert trained == [FEW, 2 * FEW]


def test_fewer_samples_are_of_all_classes() -> None:
    label_M = np.array([0] * 50 + [1] * 5 + [2, 3] + [4] * 10)
    train = Shards(np.arange(67), np.array([0, 57, 67]))
    first, second = (estimate.fewer_samples(train, label_M, 10).of(k) for k in (0, 1))
    assert first.tolist() == [0, 1, 2, 3, 50, 51, 52, 53, 55, 56] and second.tolist() == [*range(57, 67)]
    assert set(label_M[estimate.fewer_samples(train, label_M, 2).of(0)]) == {0, 1, 2, 3}


def test_failed_cells_are_planned_only_if_they_run_again(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, failed = sweep_of(workplace, grid={}, seeds="1..2", set=["rounds=4"]).cells
    states = [CellState(done, "done", None, 4), CellState(failed, "failed", None, 1)]
    print_plan(states, [Cost(10.0, 1024.0)] * 2, 2)
    assert capsys.readouterr().out.splitlines()[-1] == "1 done, 1 failed"
    print_plan(states, [Cost(10.0, 1024.0)] * 2, 2, retry_failed=True)
    assert capsys.readouterr().out.splitlines()[-1].endswith("(once) and 1 cell.")
