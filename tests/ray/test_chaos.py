"""A little chaos: each kind of victim once, through the real commands. `make chaos` does it a hundred times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import Chaos

pytestmark = pytest.mark.ray


def test_a_client_actor_the_server_and_the_driver_are_killed(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, rounds=30, seed=1)
    # The first pause lets Ray start; a driver killed in the middle of that is what `make chaos` meets, too.
    pauses = iter([8.0, 0.5, 3.0])
    chaos.run(iter(["client actor", "driver", "server actor"]), lambda: next(pauses))
    assert sum(chaos.tally.kills.values()) >= 1
    assert chaos.tally.runs == 1
