"""The state after the best round by validation is kept, whatever dies, and costs at most one more checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointManager, CheckpointStore
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.policies.evaluations import EvaluationSchedule
from raysim.engine.progress import Progress
from raysim.engine.run import state_digest
from tests.engine.scenarios import all_rounds, loaded, planned
from tests.engine.test_recovery import Dies

pytestmark = pytest.mark.xdist_group("checkpoint-best_val")  # one process makes the run of `undisturbed`

PEAK = ("training.lr=0.6", "seed=7")
"""Settings of the tiny scenario whose validation accuracy is greatest after round 4 of 8."""
ROUNDS = 8


def manager(folder: Path, every: int | None = 1, keep_best_val: bool = True) -> CheckpointManager:
    return CheckpointManager(CheckpointStore(open_storage(folder)), every, ROUNDS, keep_best_val=keep_best_val)


def run(
    *sets: str,
    checkpoints: CheckpointManager | None = None,
    backend: InProcessBackend | None = None,
    every: int = 1,
    after_round: Callable[[Any, int], None] = lambda backend, t: None,
) -> tuple[Progress, str, str | None]:
    """Run the scenario: its progress, its final digest and that of the kept state of the best round."""
    schedule = EvaluationSchedule(ROUNDS, every=every)
    plan, raw = planned(loaded(*PEAK, *sets), num_rounds=ROUNDS, evaluations=schedule, max_attempts=100)
    used, progress = backend or InProcessBackend(), Progress()
    try:
        digest = all_rounds(
            plan, used, raw, checkpoints=checkpoints, after=lambda rounds, t: after_round(used, t), progress=progress
        )
    finally:
        used.close()
    return progress, digest, checkpoints and digest_of_best(checkpoints, plan, raw)


@cache
def undisturbed() -> tuple[Progress, str, str | None]:
    """What `run` gives if nothing dies and each round has a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        return run(checkpoints=manager(Path(folder)))


def digest_of_best(checkpoints: CheckpointManager, plan: Any, images: Any) -> str | None:
    best, backend = CheckpointStore.open(checkpoints.store.storage).of_best_val(), InProcessBackend()
    if best is None:
        return None
    try:
        backend.start(plan, images)
        checkpoints.store.restore(best, backend.restore)
        return state_digest(backend)
    finally:
        backend.close()


@pytest.mark.parametrize("when", ["after_update", "after_receive"])
def test_the_state_after_the_best_round_is_kept(tmp_path: Path, when: str) -> None:
    after: dict[int, str] = {}
    given = f"evaluation.when={when}"
    plain, digest, _ = run(given, every=2, after_round=lambda b, t: after.update({t: state_digest(b)}))
    progress, same, best = run(given, every=2, checkpoints=manager(tmp_path, 3))
    assert same == digest
    assert progress.best_val_round == plain.best_val_round is not None
    if when == "after_update":
        assert progress.best_val_round == 4
    assert best == after[progress.best_val_round]


def test_deaths_change_neither_the_run_nor_the_kept_state(tmp_path: Path) -> None:
    expected = undisturbed()
    backend = Dies(2, 5, 6)
    progress, *digests = run(checkpoints=manager(tmp_path / "deaths", 3), backend=backend)
    assert not backend.left
    assert (progress.best_val_round, progress.best_val) == (expected[0].best_val_round, expected[0].best_val)
    assert tuple(digests) == expected[1:]
