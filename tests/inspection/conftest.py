"""Runs that the tests look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import raysim
from raysim.runs.run import Run
from tests.conftest import plain_runs
from tests.engine.scenarios import digits


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, tracking_store: str) -> Callable[..., Run]:
    """Runs of the tiny scenario, once per session: `runs("fedgh", rounds=2)`."""
    folder = tmp_path_factory.mktemp("runs")
    made: dict[str, Run] = {}

    def run(method: str = "fedgh", *sets: str, **changes: Any) -> Run:
        key = repr((method, sets, changes))
        if key not in made:
            given = digits(algorithm={"name": method}, output=str(folder), **changes)
            with pytest.MonkeyPatch.context() as patch:
                plain_runs(patch, tracking_store)
                made[key] = raysim.run(given, sets=sets, quiet=True)
        return made[key]

    return run
