"""Virtual time, selection, availability and dropout: cases that one can compute by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raysim.common.errors import RunError
from raysim.engine.policies.sampling import (
    BySamples,
    Candidates,
    Fastest,
    Participation,
    cohort,
    selected_size,
)
from raysim.engine.policies.system import Devices, LogNormal, Timing, Uniform, time_round
from raysim.engine.stragglers import StragglerDraws


def system_of(clients: int, **given: Any) -> Devices:
    absent = {"flops_per_s": np.inf, "up_mbit_per_s": np.inf, "down_mbit_per_s": np.inf, "latency_s": 0.0}
    absent |= {"availability": 1.0, "dropout": 0.0}
    return Devices(**{name: np.full(clients, given.get(name, value), dtype=float) for name, value in absent.items()})


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 0.0),
        ({"flops_per_s": 1e9}, 4.0),  # 4e9 operations
        ({"up_mbit_per_s": 8.0}, 0.5),  # 500,000 bytes at 1,000,000 per second
        ({"down_mbit_per_s": 1.0}, 16.0),  # 2,000,000 bytes at 125,000 per second
        ({"flops_per_s": 2e9, "up_mbit_per_s": 4.0, "down_mbit_per_s": 16.0, "latency_s": 0.25}, 2 + 1 + 1 + 0.25),
    ],
)
def test_seconds_of_a_client_round(given: dict[str, float], seconds: float) -> None:
    assert system_of(1, **given).seconds(0, 4e9, 500_000, 2_000_000) == seconds


SECONDS = {3: 2.0, 5: 1.0, 8: 4.0, 9: 2.0}


@pytest.mark.parametrize(
    ("given", "late", "round_s", "dropped"),
    [
        ({"size": 4}, [], 4.0, 0),  # the slowest decides
        ({"size": 4, "dropped": 1}, [], 4.0, 1),  # without a deadline, no time is lost on one that dropped out
        ({"size": 2}, [8, 9], 2.0, 2),  # the first two: 5, and of 3 and 9 the lower id
        ({"size": 4, "deadline_s": 2.0}, [8], 2.0, 1),  # at the deadline still counts
        ({"size": 4, "deadline_s": 3.0}, [8], 3.0, 1),  # the server waits for client 8
        ({"size": 3, "deadline_s": 3.0}, [8], 2.0, 1),  # enough after two seconds: it does not wait
        ({"size": 4, "deadline_s": 9.0}, [], 4.0, 0),
        ({"size": 5, "deadline_s": 9.0}, [], 4.0, 0),  # fewer were available: none is missing
        ({"size": 5, "deadline_s": 9.0, "dropped": 1}, [], 9.0, 1),
        ({"size": 5, "deadline_s": 9.0, "failed": 1}, [], 9.0, 0),
        ({"size": 4, "deadline_s": 0.5}, [3, 5, 8, 9], 0.5, 4),
    ],
)
def test_a_round_ends(given: dict[str, Any], late: list[int], round_s: float, dropped: int) -> None:
    assert time_round(SECONDS, **given) == Timing(SECONDS, late, round_s, dropped)


def test_a_round_without_participants_takes_no_time() -> None:
    assert time_round({}, 3) == Timing({}, [], 0.0, 0)
    assert time_round({}, 3, deadline_s=7.0, dropped=2).round_s == 7.0


def test_availability_and_dropout_are_of_each_client_and_round() -> None:
    system = system_of(1000, availability=0.25, dropout=0.5)
    everyone = range(1000)
    rounds = [system.available(1, t, everyone) for t in (1, 2)]
    assert rounds[0] == system.available(1, 1, everyone) and rounds[0] != rounds[1]
    assert [len(found) for found in rounds] == pytest.approx([250, 250], abs=45)  # three standard deviations
    assert system.available(1, 1, range(10)) == [k for k in rounds[0] if k < 10]  # and of no other client's draw
    assert len(system.finishing(1, 1, everyone)) == pytest.approx(500, abs=50)
    certain = system_of(3, availability=1.0, dropout=1.0)
    assert certain.available(1, 1, [0, 2]) == [0, 2] and not certain.finishing(1, 1, [0, 2])


def test_dropout_is_not_the_draw_of_availability() -> None:
    system = system_of(2000, availability=0.5, dropout=0.5)
    available = system.available(1, 1, range(2000))
    # Half of about 1000, within four standard deviations; with the same draw it would be all of them or none.
    assert len(system.finishing(1, 1, available)) == pytest.approx(len(available) / 2, abs=64)


def test_distributions() -> None:
    def draw(distribution: Any, count: int) -> Any:
        return distribution.draw(np.random.default_rng(1), count)

    for distribution in (Uniform(1.0, 3.0), LogNormal(5.0, 0.5)):
        assert draw(distribution, 4).tolist() == draw(distribution, 9)[:4].tolist()
    assert np.median(draw(LogNormal(5.0, 0.5), 9999)) == pytest.approx(5.0, rel=0.03)
    assert np.log(draw(LogNormal(5.0, 0.5), 9999)).std() == pytest.approx(0.5, rel=0.02)
    found = draw(Uniform(1.0, 3.0), 9999)
    assert 1.0 <= found.min() < 1.01 < 2.99 < found.max() < 3.0


def test_oversampling() -> None:
    assert [selected_size(*given) for given in ((10, 1.3), (10, 1.0), (3, 1.3), (3, 2.0))] == [13, 10, 4, 6]
    assert len(cohort(1, 1, range(100), 10, participation=Participation(oversample=1.3))) == 13


def test_only_the_available_are_selected() -> None:
    system = system_of(4)
    system.availability[:] = [1, 0, 1, 0]
    assert cohort(1, 1, range(4), 3, participation=Participation(system=system)) == (0, 2)


def test_more_samples_are_selected_more_often() -> None:
    given = Participation(BySamples())
    found = [cohort(1, t, [0, 1], 1, {0: 3, 1: 1}, given) for t in range(1000)]
    assert found.count((0,)) == pytest.approx(750, abs=42)


class Returns:
    def __init__(self, found: Any) -> None:
        self.found = found

    def select(self, candidates: Candidates, size: int, rng: np.random.Generator) -> Any:
        return self.found


@pytest.mark.parametrize("found", [[1, 1], [1], [1, 9]])
def test_what_is_no_selection(found: Any) -> None:
    with pytest.raises(RunError, match=r"Returns\.select"):
        cohort(1, 3, range(8), 2, participation=Participation(Returns(found)))


def test_the_fastest_of_those_that_are_drawn() -> None:
    system = system_of(6)
    system.flops_per_s[:] = [1, 6, 2, 5, 5, 3]
    assert cohort(1, 1, range(6), 3, participation=Participation(Fastest(10.0), system=system)) == (1, 3, 4)
    assert cohort(1, 1, range(6), 2, participation=Participation(Fastest(3.0), system=system)) == (
        1,
        3,
    )  # of equal ones the lower
    drawn = [cohort(1, t, range(6), 1, participation=Participation(Fastest(2.0), system=system))[0] for t in range(600)]
    # Client 1 is one of two in a third of all rounds; client 0, the slowest, never wins.
    assert drawn.count(1) == pytest.approx(200, abs=35) and 0 not in drawn


def test_draws_stay_as_they_are() -> None:
    """Results of earlier versions must come out again."""
    everyone = range(12)
    system = system_of(12, availability=0.5, dropout=0.5)
    assert system.available(7, 3, everyone) == [0, 1, 2, 4, 7, 8, 9, 10, 11]
    assert system.finishing(7, 3, everyone) == [2, 3, 7]
    assert cohort(7, 3, everyone, 4) == (3, 7, 9, 11)
    assert cohort(7, 3, everyone, 4, {k: k + 1 for k in everyone}, Participation(BySamples())) == (4, 7, 9, 10)
    speeds = system_of(12)
    speeds.flops_per_s[:] = [(k * 5) % 12 for k in everyone]
    assert cohort(7, 3, everyone, 4, participation=Participation(Fastest(2.0), system=speeds)) == (2, 4, 6, 9)
    assert [StragglerDraws(0.5, seed=7).epochs(9, 3, k) for k in everyone] == [9, 2, 9, 6, 9, 9, 9, 2, 5, 9, 9, 9]
