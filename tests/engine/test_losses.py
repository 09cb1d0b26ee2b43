"""Runs that lose parts of themselves by schedule end as if nothing was lost; see `tests.engine.losses`."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.engine.checkpoint.storage import Storage
from raysim.engine.records import SavedFiles
from tests.engine.losses import VARIANTS, Outcome, Schedule, SimulatedWorkers, run_with_losses, undisturbed

pytestmark = pytest.mark.xdist_group("losses")  # one process makes the runs of `undisturbed`

SEEDS = 12
"""Of the tests; `python -m tests.engine.losses` runs a thousand."""


def expected(seed: int) -> Outcome:
    return undisturbed(VARIANTS[seed % len(VARIANTS)])


def test_losses_change_nothing_and_everything_is_lost_once(tmp_path: Path) -> None:
    lost = []
    for seed in range(SEEDS):
        schedule = Schedule(seed)
        assert run_with_losses(schedule, tmp_path / str(seed)) == expected(seed), (seed, schedule.lost)
        lost += schedule.lost
    assert {text.split()[0] for text in lost} == {"worker", "server", "node", "answer", "disk", "driver"}
    calls = {text.rpartition(" at ")[2] for text in lost}
    assert calls >= {"send", "train", "evaluate", "evaluate_current", "aggregate", "discard", "save", "recover"}


class Forgetful(SimulatedWorkers):
    """A broken recovery: only the server gets its state back, so that clients begin anew in the middle of the run."""

    def restore(self, files: SavedFiles, storage: Storage) -> None:
        super().restore(([], files[1]), storage)


def test_a_broken_recovery_is_found_and_replayed_from_its_seed(tmp_path: Path) -> None:
    def differs(seed: int, folder: str) -> bool:
        return run_with_losses(Schedule(seed), tmp_path / folder / str(seed), Forgetful) != expected(seed)

    first = next(seed for seed in range(SEEDS) if differs(seed, "once"))
    assert differs(first, "again")
