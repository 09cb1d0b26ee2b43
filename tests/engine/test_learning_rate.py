"""The learning rate over the rounds, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import raysim
from raysim.common.errors import RunError, ScenarioError
from raysim.engine.learning_rate import Constant, Cosine, RateSchedule, Step, factor_of
from raysim.runs.plan import make_plan
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import plain as loaded
from tests.engine.scenarios import plain_digits as digits

BY_HAND = [
    (Constant(), [1, 1, 1, 1, 1]),
    (Step(every=2), [1, 1, 0.1, 0.1, 0.01]),
    (Step(every=1, by=0.5), [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]),
    # (1 + cos(pi t / 4)) / 2 of t = 0 to 3: cos(45 degrees) is the root of 1/2.
    (Cosine(), [1, 0.8535534, 0.5, 0.1464466]),
    (Cosine(floor=0.2), [1, 0.8828427, 0.6, 0.3171573]),
    (Constant(warmup=2), [1 / 2, 1, 1, 1]),
    (Step(every=2, warmup=1), [1, 1, 1, 0.1, 0.1]),
    # After the warm-up, the schedule runs over the four rounds that are left.
    (Cosine(warmup=3), [1 / 3, 2 / 3, 1, 1, 0.8535534, 0.5, 0.1464466]),
    (Cosine(warmup=4), [1 / 4, 1 / 2, 3 / 4]),  # the run ends before it
]


@pytest.mark.parametrize(("schedule", "factors"), BY_HAND, ids=[str(one) for one, _ in BY_HAND])
def test_by_hand(schedule: RateSchedule, factors: list[float]) -> None:
    found = [schedule.factor(t, len(factors)) for t in range(1, len(factors) + 1)]
    assert found == pytest.approx(factors, abs=1e-7)


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_what_is_no_factor(value: float) -> None:
    with pytest.raises(RunError, match=r"factor\(2, 3\)"):
        factor_of(SimpleNamespace(factor=lambda t, num_rounds: value), 2, 3)


def test_clients_and_server_train_with_it() -> None:
    plan = make_plan(Scenario.of(loaded("training.lr=0.5", "training.schedule={name: step, every: 1}", "rounds=3")))[0]
    assert [plan.local_in(t).lr for t in range(4)] == pytest.approx([0.5, 0.5, 0.05, 0.005])


def test_more_rounds_are_added_only_where_the_old_ones_stay_the_same(workplace: Path) -> None:
    def sets(schedule: str, rounds: int) -> list[str]:
        return [f"training.schedule={schedule}", f"rounds={rounds}"]

    step, cosine = "{name: step, every: 1, by: 0.5}", "{name: cosine}"
    two, three = (raysim.run(digits(), sets=sets(step, rounds), quiet=True) for rounds in (2, 3))
    first, *later = three.rounds["training/lr"][1:]
    assert later == [first / 2, first / 4]
    assert two.resume(["rounds=3"], quiet=True).state_digest == three.state_digest
    two = raysim.run(digits(), sets=sets(cosine, 2), quiet=True)
    with pytest.raises(ScenarioError, match="rounds"):
        two.resume(["rounds=3"], quiet=True)
