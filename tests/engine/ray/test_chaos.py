"""Runs survive the death of a client actor, the server actor and the driver; `make chaos` kills a hundred times."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos import KINDS, Chaos, Strike

pytestmark = [pytest.mark.ray, pytest.mark.large]

ROUND = "raysim.results.folder:RunFolder.log"
DRAW = "raysim.runs.execution:Execution._draw"
TERMINATE = "raysim.results.mlflow:MlflowTracker._complete"


def test_each_kind_of_process_is_killed_in_rounds_and_in_the_closing(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, rounds=20, seed=1)
    in_rounds = [
        Strike(signal.SIGKILL, ROUND, nth=3, whom=KINDS["client actor"]),
        Strike(signal.SIGKILL, ROUND, nth=7, whom=KINDS["server actor"]),
        Strike(signal.SIGKILL, ROUND, nth=12),
    ]
    in_closing = [Strike(signal.SIGTERM, DRAW), Strike(signal.SIGINT, DRAW), Strike(signal.SIGKILL, TERMINATE, True)]
    at_the_end = [Strike(signal.SIGTERM, TERMINATE)]
    chaos.run(iter([]), lambda: 0.0, [in_rounds, in_closing, at_the_end])
    drivers = [strike for strike in (*in_rounds, *in_closing, *at_the_end) if not strike.whom]
    assert chaos.tally.kills == dict.fromkeys((*KINDS.values(), *map(str, drivers)), 1)
    assert chaos.tally.resumed == 2  # once after each SIGKILL of the driver
    log = (tmp_path / "run0" / "log.txt").read_text()
    for victim in ("client actor", "the server actor"):
        assert any(victim in line and " died: " in line for line in log.splitlines()), log
    assert "Traceback" not in log
