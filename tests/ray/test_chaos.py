"""A little chaos: each kind of victim once, through the real commands. `make chaos` does it a hundred times."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos import KINDS, Chaos, Strike

pytestmark = pytest.mark.ray

ROUND = "raysim.tracking.folder:RunFolder.log"
DRAW = "raysim.launch.session:Session._draw"
TERMINATE = "raysim.tracking.mlflow:MlflowTracker._terminate"


def test_actors_and_the_driver_are_killed_in_rounds_and_in_the_closing(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, rounds=20, seed=1)
    in_rounds = [
        Strike(signal.SIGKILL, ROUND, nth=3, whom=KINDS["client actor"]),
        Strike(signal.SIGKILL, ROUND, nth=7, whom=KINDS["server actor"]),
        Strike(signal.SIGKILL, ROUND, nth=12),
    ]
    in_closing = [Strike(signal.SIGTERM, DRAW), Strike(signal.SIGINT, DRAW), Strike(signal.SIGKILL, TERMINATE, True)]
    chaos.run(iter([]), lambda: 0.0, [in_rounds, in_closing, [Strike(signal.SIGTERM, TERMINATE)]])
    assert sum(chaos.tally.kills.values()) == 7
    assert chaos.tally.resumed == 2
    assert "Traceback" not in (tmp_path / "run0" / "log.txt").read_text()
