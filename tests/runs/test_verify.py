"""`raysim verify` names the first round, client and tensor that differ, and finds nothing where nothing does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.runs import verify as module
from raysim.runs.verify import Trace, Variation, difference
from tests.engine.scenarios import plain as loaded

HERE = Variation(None)


def trace(**changes: Any) -> Trace:
    rounds = [{"client 3": {"w": "a", "b": "b"}, "client 10": {"w": "c"}, "the server": {"w": "d"}} for _ in range(2)]
    metrics = [{"round": t, "accuracy/all": 0.5, "time/round_s": float(t)} for t in range(3)]
    return replace(Trace(HERE, rounds, metrics, "digest"), **changes)


def test_equal_traces() -> None:
    other = trace(variation=Variation(4, kill=True), restarts=1)
    other.metrics[1]["time/round_s"] = 9.0  # type: ignore[index]
    assert difference(trace(), other) is None
    assert other.variation.name == "4 actors, one killed"


@pytest.mark.parametrize(("who", "tensor"), [("client 10", "w"), ("the server", "w"), ("client 3", "new")])
def test_the_first_difference_is_named(who: str, tensor: str) -> None:
    other = trace(digest="other")
    other.rounds[1][who][tensor] = "x"
    other.rounds[1]["the server"]["w"] = "x"
    assert (difference(trace(), other) or "").startswith(f"round 2, {who}, {tensor}")


def test_a_metric_that_differs_is_named() -> None:
    other = trace()
    other.metrics[2]["accuracy/all"] = 0.25  # type: ignore[index]
    assert (difference(trace(), other) or "").startswith("round 2, accuracy/all")
    assert "digest" in (difference(trace(), trace(digest="x")) or "")


def test_two_seeds_differ_and_one_does_not() -> None:
    first, again, other = (module._traced(loaded("rounds=2", f"seed={seed}"), HERE) for seed in (5, 5, 6))
    assert len(first.rounds) == 2
    assert all(len(found) == 4 + 1 for found in first.rounds)  # the participants and the server
    assert difference(first, again) is None
    assert (difference(first, other) or "").startswith("round 1, ")
