"""Asynchronous rounds: schedules by hand, and the same bits as a synchronous run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.core.algorithm import ClientId
from raysim.core.messages import Header, Model
from raysim.engine.policies.asynchronous import Flight, Hinge, Polynomial, UploadBuffer
from raysim.engine.stages import Uploads
from tests.engine.scenarios import digits

SLOW: dict[str, Any] = {
    "algorithm": {"name": "fedavg"},
    "clients": {"count": 8, "participation": 0.5, "models": ["digits_mlp64"]},
    "system": {"flops_per_s": {"name": "log_normal", "median": 1e8}},
    "asynchronous": {"buffer": 2},
    "rounds": 6,
}


def schedule(
    buffer: int, seconds: dict[ClientId, float], rounds: int
) -> list[tuple[float, list[tuple[ClientId, int]]]]:
    """Return (end, [(client, staleness)]) of each round of clients that always need the same time."""
    asynchronous, flight, found = UploadBuffer(buffer, Polynomial()), Flight(), []
    for t in range(1, rounds + 1):
        sent = {k: one for k, one in seconds.items() if k not in flight.arrivals}
        after = asynchronous.timing(flight, t, sent).flight
        assert after is not None
        under_way = {**dict.fromkeys(sent, t), **{k: since for k, (_, since) in flight.arrivals.items()}}
        counted = sorted(under_way.keys() - after.arrivals.keys())
        found.append((after.clock_s, [(k, t - under_way[k]) for k in counted]))
        flight = after
    return found


def test_three_clients_by_hand() -> None:
    seconds = {0: 1.0, 1: 2.0, 2: 5.0}
    assert schedule(1, seconds, 6) == [
        (1.0, [(0, 0)]), (2.0, [(0, 0)]), (2.0, [(1, 2)]), (3.0, [(0, 1)]), (4.0, [(0, 0)]), (4.0, [(1, 2)]),
    ]  # fmt: skip
    assert schedule(2, seconds, 4) == [
        (2.0, [(0, 0), (1, 0)]), (4.0, [(0, 0), (1, 0)]), (5.0, [(0, 0), (2, 2)]), (6.0, [(0, 0), (1, 1)]),
    ]  # fmt: skip


def test_the_mean_staleness_follows_from_the_number_under_way() -> None:
    """Of M clients at once, K leave in each round, so each stays for M / K rounds on average."""
    rng = np.random.default_rng(1)
    seconds = dict(enumerate(rng.lognormal(size=10).tolist()))
    ages = [age for _, counted in schedule(4, seconds, 4000) for _, age in counted]
    assert sum(ages) / len(ages) == pytest.approx(10 / 4 - 1, rel=0.01)


def test_factors_of_stale_changes() -> None:
    assert UploadBuffer(2, Polynomial(0.5), rate=0.5).factor(3) == 0.5 * 4**-0.5
    assert UploadBuffer(2, Polynomial(0.5), rate=0.5).factor(0) == 0.5
    assert [Hinge(a=10, late=4).factor(s) for s in (4, 6)] == [1.0, 1 / 21]


def test_a_stale_change_is_moved_to_the_present_message() -> None:
    def model(value: float) -> Model:
        return Model({"w": torch.tensor([value])})

    ups = {0: model(5.0), 1: model(5.0), 2: Header({"w": torch.tensor([5.0])})}
    then = {0: model(2.0), 1: model(2.0), 2: model(2.0)}
    moved = Uploads.of(ups, then.get).caught_up({0: 0.5, 2: 0.5}, lambda k: model(10.0)).ups
    assert moved[0].w["w"].item() == 10 + 0.5 * (5 - 2)
    assert moved[1] is ups[1]
    assert moved[2] is ups[2]  # it has not the form of what its client got


def test_equal_devices_and_a_full_buffer_are_the_synchronous_run(workplace: Path) -> None:
    given = digits(**{**SLOW, "system": {"flops_per_s": 1e9}, "asynchronous": None})
    plain, buffered = (raysim.run(given, sets=sets, quiet=True) for sets in ([], ["asynchronous={buffer: 4}"]))
    assert plain.state_digest == buffered.state_digest
    assert (buffered.rounds["async/staleness"].iloc[1:] == 0).all()
