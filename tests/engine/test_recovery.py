"""What a run says and does when it loses a part of itself, or when a client fails; `test_losses` compares outcomes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from raysim.algorithms.standalone import Standalone
from raysim.common.errors import HookError, RunError
from raysim.core.algorithm import ClientId
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointManager, CheckpointStore
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.policies.evaluations import EvaluationSchedule
from raysim.engine.progress import Progress
from raysim.engine.records import (
    Broadcast,
    LostError,
)
from raysim.engine.stop import Stop
from raysim.results.in_memory import MemoryTracker
from raysim.scenario.parse import ParsedScenario
from tests.conftest import said
from tests.engine import scenarios
from tests.engine.scenarios import ROUNDS, Outcome, all_rounds, outcome, planned

pytestmark = pytest.mark.xdist_group("recovery")  # one process makes the runs of `undisturbed`


def loaded(*sets: str) -> ParsedScenario:
    """The tiny scenario with large batches: a few steps a round, a short last batch among them, show a lost bit too."""
    return scenarios.loaded("training.batch_size=64", *sets)


@cache
def undisturbed(*sets: str) -> Outcome:
    """What a run of these settings ends with if nothing dies."""
    return outcome(loaded(*sets), InProcessBackend())


STANDALONE, FEDPROTO = "algorithm={name: standalone}", "algorithm={name: fedproto}"


class Dies(InProcessBackend):
    """Dies once at the beginning of each of these rounds, and then knows nothing until it is recovered."""

    def __init__(self, *rounds: int) -> None:
        super().__init__()
        self.left = {*rounds}

    def send(self, t: int, cohort: Sequence[ClientId]) -> Broadcast:
        if t in self.left:
            self.left.remove(t)
            self.worker.states.held.clear()
            self.server.server.state = None
            raise LostError(f"round {t}: client actor 1 of 1 died")
        return super().send(t, cohort)


def test_attempts_are_bounded() -> None:
    class AlwaysDies(InProcessBackend):
        def send(self, t: int, cohort: Sequence[ClientId]) -> Broadcast:
            raise LostError(f"round {t}: client actor 1 of 1 died")

    with pytest.raises(RunError, match="max_attempts"):
        outcome(loaded(), AlwaysDies(), max_attempts=2)


def test_a_damaged_checkpoint_is_told_and_is_no_attempt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The checkpoint of round 3 is damaged as it is restored; one attempt is enough to go back to that of round 2."""

    class Damaging(Dies):
        def recover(self) -> None:
            path = tmp_path / "server-000003.safetensors"
            if path.exists():
                path.write_bytes(path.read_bytes()[:-1] + b"?")
            super().recover()

    backend = Damaging(4)
    checkpoints = CheckpointManager(CheckpointStore(open_storage(tmp_path)), 1, ROUNDS)
    assert outcome(loaded(FEDPROTO), backend, checkpoints, max_attempts=1) == undisturbed(FEDPROTO)
    assert not backend.left
    assert any("server-000003.safetensors" in text for text in said(caplog))


def test_the_end_is_asked_for_once_the_round_is_saved(tmp_path: Path) -> None:
    given = loaded()
    plan, raw = planned(given, num_rounds=ROUNDS, evaluations=EvaluationSchedule(ROUNDS))
    stop, progress = Stop(), Progress()
    checkpoints = CheckpointManager(CheckpointStore(open_storage(tmp_path)), 100, ROUNDS)
    backend, memory = InProcessBackend(), MemoryTracker()

    def ask(done: int, of: int) -> None:
        stop.requested = progress.t == 1  # in the middle of round 2

    with pytest.raises(KeyboardInterrupt):
        all_rounds(plan, backend, raw, memory, checkpoints=checkpoints, progress=progress, stop=stop, within=ask)
    backend.close()
    assert [values["round"] for values in memory.rounds] == [0, 1, 2]
    assert checkpoints.saved_round == 2


class Picky(Standalone):
    """Fails for one client in one round, half-way through its training."""

    def client_update(self, client: Any, down: None) -> None:
        super().client_update(client, down)
        if client.t == 2 and client.id == FAILING:
            raise ZeroDivisionError("no")


FAILING = 0


def failing() -> ParsedScenario:
    global FAILING
    rows = undisturbed(STANDALONE)[1]
    FAILING = next(row.client for row in rows if row.round == 2 and row.participated)
    return loaded("algorithm={name: standalone}", "failure.max_failed_fraction=0.3").model_copy(
        update={"algorithm": Picky()}
    )


def test_a_tolerated_failure_leaves_the_client_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = failing()
    with pytest.raises(HookError, match="max_failed_fraction"):
        outcome(given, InProcessBackend(), max_failed_fraction=0.2)
    digest, rows, values = outcome(given, InProcessBackend(), max_failed_fraction=0.3)
    assert (FAILING, 2) not in {(row.client, row.round) for row in rows if row.participated}
    (warning,) = caplog.messages
    assert warning.startswith(f"round 2 continues without client {FAILING}: Picky")
    backend = Dies(2, 3)
    checkpoints = CheckpointManager(CheckpointStore(open_storage(tmp_path)), 1, ROUNDS)
    again = outcome(given, backend, checkpoints, max_failed_fraction=0.3)
    assert not backend.left
    assert again == (digest, rows, values)


class Unlucky(Standalone):
    """Fails for one client in round 2, but not when the round is repeated, as one that took too long once."""

    def __init__(self, client: ClientId) -> None:
        object.__setattr__(self, "failing", [client])

    def client_update(self, client: Any, down: None) -> None:
        super().client_update(client, down)
        if client.t == 2 and client.id in self.failing:
            self.failing.clear()
            raise ZeroDivisionError("no")


def test_a_client_that_failed_is_left_out_when_its_round_is_repeated() -> None:
    rows = undisturbed(STANDALONE)[1]
    failing = next(row.client for row in rows if row.round == 2 and row.participated)
    given = loaded("algorithm={name: standalone}", "failure.max_failed_fraction=0.3")
    expected, found = (
        outcome(given.model_copy(update={"algorithm": Unlucky(failing)}), backend, max_failed_fraction=0.3)
        for backend in (InProcessBackend(), Dies(3))
    )
    assert (failing, 2) not in {(row.client, row.round) for row in expected[1] if row.participated}
    assert found == expected


def test_a_full_disk_is_no_failure_of_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("raysim.engine.workers.state_files.os.pwrite", full)
    given = loaded("algorithm={name: standalone}", "failure.max_failed_fraction=0.9")
    with pytest.raises(RunError, match="no space left on device"):
        outcome(given, InProcessBackend(), max_failed_fraction=0.9)


class Slow(Standalone):
    """Sleeps for one client in one round."""

    def client_update(self, client: Any, down: None) -> None:
        super().client_update(client, down)
        if client.t == 2 and client.id == FAILING:
            time.sleep(30)


def test_a_client_that_takes_too_long(caplog: pytest.LogCaptureFixture) -> None:
    given = failing().model_copy(update={"algorithm": Slow()})
    sets = ["algorithm={name: standalone}", "failure.client_timeout_s=2"]
    strict = loaded(*sets).model_copy(update={"algorithm": Slow()})
    with pytest.raises(RunError, match=rf"client {FAILING} .*client_timeout_s"):
        outcome(strict, InProcessBackend())
    lenient = loaded(*sets, "failure.max_failed_fraction=0.3").model_copy(update={"algorithm": Slow()})
    found = outcome(lenient, InProcessBackend(), max_failed_fraction=0.3)
    (warning,) = caplog.messages
    assert "client_timeout_s" in warning
    # As if it had failed in any other way.
    assert found == outcome(
        given.model_copy(update={"algorithm": Picky()}), InProcessBackend(), max_failed_fraction=0.3
    )


class OfTheMachine(Standalone):
    """Fails for one client in round 2 for a reason that depends on the machine."""

    def __init__(self, client: ClientId, error: Exception) -> None:
        object.__setattr__(self, "failing", (client, error))

    def client_update(self, client: Any, down: None) -> None:
        failing, error = self.failing
        if (client.t, client.id) == (2, failing):
            raise error
        super().client_update(client, down)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)
def test_what_depends_on_the_machine_is_no_failure_of_a_client(error: Exception) -> None:
    """Otherwise, results would depend on how many actors share a GPU."""
    rows = undisturbed(STANDALONE)[1]
    client = next(row.client for row in rows if row.round == 2 and row.participated)
    given = loaded("algorithm={name: standalone}", "failure.max_failed_fraction=0.9")
    with pytest.raises(HookError, match=rf"OfTheMachine.client_update of client {client} failed in round 2"):
        outcome(
            given.model_copy(update={"algorithm": OfTheMachine(client, error)}),
            InProcessBackend(),
            max_failed_fraction=0.9,
        )
