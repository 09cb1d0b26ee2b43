"""`raysim verify` names the first round, client and tensor that differ, and finds nothing where nothing does."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import Any

import pytest

from raysim.cli.main import main
from raysim.runs import verify as module
from raysim.runs.verify import Trace, Variation, difference
from raysim.scenario.parse import ParsedScenario
from tests.conftest import REPOSITORY
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
    for one in (one_diverged := trace(), other := trace()):
        one.metrics[1]["loss/test"] = float("nan")  # type: ignore[index]
    assert difference(one_diverged, other) is None


@pytest.mark.parametrize(
    ("who", "tensor", "told"),
    [
        ("client 10", "w", "round 2, client 10, w: bits differ from those of the first run (in process)"),
        ("the server", "w", "round 2, the server, w: bits differ from those of the first run (in process)"),
        ("client 3", "new", "round 2, client 3, new: bits differ from those of the first run (in process)"),
    ],
)
def test_the_first_difference_is_named(who: str, tensor: str, told: str) -> None:
    other = trace(digest="other")
    other.rounds[1][who][tensor] = "x"
    other.rounds[1]["the server"]["w"] = "x"
    assert difference(trace(), other) == told


def test_a_metric_that_differs_is_named() -> None:
    other = trace()
    other.metrics[2]["accuracy/all"] = 0.25  # type: ignore[index]
    assert difference(trace(), other) == "round 2, accuracy/all: 0.25, but 0.5 in the first run (in process)"
    assert difference(trace(), trace(digest="x")) == "the state digest differs from that of the first run (in process)"


def test_two_seeds_differ_and_one_does_not() -> None:
    with contextlib.ExitStack() as cleanup:
        first, again, other = (
            module._traced(loaded("rounds=2", f"seed={seed}"), HERE, 1, cleanup, 0) for seed in (5, 5, 6)
        )
    assert len(first.rounds) == 2
    assert all(len(found) == 4 + 1 for found in first.rounds)  # the participants and the server
    assert difference(first, again) is None
    assert (difference(first, other) or "").startswith("round 1, ")


def test_only_the_records_of_the_first_run_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def traced(given: ParsedScenario, variation: Variation, *rest: Any) -> Trace:
        logging.getLogger("raysim.engine").warning("a warning " + variation.name)
        return trace(variation=variation)

    monkeypatch.setattr(module, "_traced", traced)
    lines: list[str] = []
    module.verify(loaded(), [1, 2], False, lines.append)
    assert lines == ["in process …", "a warning in process", "1 actor …", "2 actors …"]


def test_warnings_of_a_run_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as cleanup:
        given = loaded("rounds=1", "training.together=2", "clients.models=[digits_resnet]", "clients.participation=1")
        module._traced(given, HERE, 1, cleanup, 0)
    assert any("in spite of training.together: BatchNorm needs" in text for text in caplog.messages), caplog.messages


def test_numbers_of_actors_that_are_none(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["verify", str(REPOSITORY / "scenarios" / "quickstart.yaml"), "--actors", "1,x"])
    assert "'1,x' given; give positive whole numbers" in capfd.readouterr().err
