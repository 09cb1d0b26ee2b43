"""A place that cannot be written to any more ends a run with a sentence, and leaves its last checkpoint whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysim.common.errors import RunError
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.results.in_memory import MemoryTracker
from raysim.runs.run import Run, run
from tests.engine.scenarios import plain as loaded

ON_RAY = [pytest.mark.ray, pytest.mark.large, pytest.mark.xdist_group("ray")]
"""In the process that has the Ray of all tests, which this file asks for late."""


class At(MemoryTracker):
    """Does something once, when round `t` is told."""

    def __init__(self, t: int, do: Callable[[], None]) -> None:
        super().__init__()
        self.t, self.do = t, do

    def log(self, t: int, values: Any, clients: Any) -> None:
        if t == self.t:
            self.do()


@pytest.mark.parametrize("backend", ["in_process", pytest.param("ray", marks=ON_RAY)])
def test_a_full_disk(workplace: Path, small_disk: Path, backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "ray":
        request.getfixturevalue("ray_session")
    sets = ["rounds=6", f"backend={backend}", "resources.actors=2", f"checkpoint={{every: 1, folder: '{small_disk}'}}"]

    def fill() -> None:
        with pytest.raises(OSError), (small_disk / "filler").open("wb") as file:
            while True:
                file.write(bytes(1024))
                file.flush()

    with pytest.raises(RunError, match="no space left"):
        run(loaded(*sets), quiet=True, trackers=[At(3, fill)])
    (folder,) = (workplace / "runs" / "tiny").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    kept = summary["checkpoint"]["round"]
    assert summary["status"] == "failed"
    assert "no space left" in summary["error"]
    store = CheckpointStore.open(open_storage(Path(summary["checkpoint"]["folder"])))
    checkpoint = store.latest()
    assert checkpoint is not None
    assert checkpoint.round == kept
    assert not store.damage
    (small_disk / "filler").unlink()
    whole = run(loaded("rounds=6"), quiet=True)
    assert Run(folder).resume(quiet=True).state_digest == whole.state_digest
