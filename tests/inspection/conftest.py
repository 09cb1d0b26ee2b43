"""Runs that the tests look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import raysim
from raysim.runs.run import Run
from tests.conftest import plain_runs
from tests.engine.scenarios import digits

ALL_THAT_IS_READ: dict[str, Any] = {
    "checkpoint": {"every": 1},
    "system": {"flops_per_s": 1e9, "up_mbit_per_s": 10, "down_mbit_per_s": 10},
}
"""Settings with which one run serves all tests: states of two rounds, and virtual time."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, tracking_store: str) -> Callable[..., Run]:
    """Runs of the tiny scenario, once per session: `runs("fedgh", rounds=2)`."""
    folder = tmp_path_factory.mktemp("runs")
    made: dict[str, Run] = {}

    def run(method: str = "fedgh", *sets: str, **changes: Any) -> Run:
        key = repr((method, sets, changes))
        if key not in made:
            given = digits(algorithm={"name": method}, output=str(folder), **ALL_THAT_IS_READ, **changes)
            with pytest.MonkeyPatch.context() as patch:
                plain_runs(patch, tracking_store)
                made[key] = raysim.run(given, sets=sets, quiet=True)
        return made[key]

    return run
