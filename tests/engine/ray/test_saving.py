"""Checkpoints on Ray: actors that wait for each other do not block a checkpoint."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointManager, CheckpointStore, DamagedCheckpointError
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.policies.evaluations import EvaluationSchedule
from raysim.engine.policies.placement import ClusterResources, ResourceRequest, lay_out
from raysim.engine.ray import saving
from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.pool import ActorPool
from raysim.engine.run import run_round, state_digest
from tests.engine.ray.deaths import GIVEN, sleep
from tests.engine.scenarios import all_rounds, loaded, outcome, planned

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def wait_for(path: Path, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return path.exists()


@pytest.fixture
def backend() -> Iterator[RayBackend]:
    made = RayBackend(ActorPool(lay_out([ResourceRequest(tuple(range(8)), 2, None, 1.0, 0.0)], ClusterResources(8, 2))))
    yield made
    made.close()


def patch_work(backend: RayBackend, at: int, do: Any) -> None:
    """In every client actor: do something before the work of round `at`."""
    import ray

    def patch(actor: Any) -> None:
        from raysim.engine.workers.training import ClientTrainer

        work = ClientTrainer.train

        def later(self: Any, t: int, *rest: Any) -> Any:
            if t == at:
                do()
            yield from work(self, t, *rest)

        ClientTrainer.train = later  # type: ignore[method-assign, assignment]

    ray.get([host.actor.__ray_call__.remote(patch) for host in backend.pool.clients])


@pytest.mark.large
def test_an_interrupt_does_not_wait_for_the_clients_of_the_next_round(backend: RayBackend, tmp_path: Path) -> None:
    began: list[float] = []
    collect = backend._collect

    def interrupted(work: Any, where: str, progress: Any) -> Any:
        if where == "round 2":
            threading.Timer(1.0, lambda: (began.append(time.monotonic()), _thread.interrupt_main())).start()
        return collect(work, where, progress)

    backend._collect = interrupted  # type: ignore[method-assign]
    patch_work(backend, 2, lambda: sleep(300))
    checkpoints = CheckpointManager(CheckpointStore(open_storage(tmp_path)), 1, 4)
    with pytest.raises(KeyboardInterrupt):
        outcome(loaded(GIVEN), backend, checkpoints)  # type: ignore[arg-type]
    assert time.monotonic() - began[0] < 250  # the turn takes 300
    assert checkpoints.saved_round == 1


@pytest.mark.large
@pytest.mark.parametrize("reached", [True, pytest.param(False, marks=pytest.mark.large)])
def test_a_damaged_file_is_found_where_it_is_read(
    backend: RayBackend, tmp_path: Path, reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actors read the files of their clients; for an actor that does not reach them the driver does."""
    monkeypatch.setattr(saving, "reaches", lambda pool, worker, storage: reached)
    plan, raw = planned(loaded(GIVEN), num_rounds=4, evaluations=EvaluationSchedule(4))
    checkpoints = CheckpointManager(CheckpointStore(open_storage(tmp_path)), 1, 4)
    store = checkpoints.store
    digest = all_rounds(plan, backend, raw, checkpoints=checkpoints)
    file = next(tmp_path.glob("clients-000004-*"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    newest = store.latest()
    assert newest is not None and newest.round == 4  # sizes are as they were
    backend.recover()
    with pytest.raises(
        DamagedCheckpointError, match=rf"round 4 cannot be used: {file} is damaged: its content has changed"
    ):
        store.restore(newest, backend.restore)
    before = store.latest()
    assert before is not None and before.round == 3
    backend.recover()
    store.restore(before, backend.restore)
    run_round(backend, 4, plan.cohort(4))
    assert state_digest(backend) == digest


def forwarding(monkeypatch: pytest.MonkeyPatch) -> RayBackend:
    """A backend whose one client actor does not reach the storage, and has a file for each client."""
    import ray

    monkeypatch.setattr(saving, "reaches", lambda pool, worker, storage: False)
    plan = lay_out([ResourceRequest(tuple(range(8)), 1, None, 1.0, 0.0)], ClusterResources(8, 2))
    backend = RayBackend(ActorPool(plan))

    def a_file_for_each_client(actor: Any) -> None:
        from raysim.engine.checkpoint import format

        format.MIN_FILE_BYTES = 1

    ray.get([one.actor.__ray_call__.remote(a_file_for_each_client) for one in backend.pool.clients])
    return backend


@pytest.mark.large
@pytest.mark.parametrize("settings", [{}, {"all_every": 2}], ids=["clients that missed a test", "all clients"])
def test_tests_do_not_wait_for_forwarded_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]
) -> None:
    """An actor that does not reach the storage stands still until its files are taken: no test may be queued behind."""
    backend = forwarding(monkeypatch)
    checkpoints = CheckpointManager(CheckpointStore(open_storage(tmp_path)), 4, 4)
    found: list[Any] = []

    def run() -> None:
        found.append(outcome(loaded(GIVEN), backend, checkpoints, **settings))  # type: ignore[arg-type]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120)
    backend.close()
    assert found, "the driver waits for a test, and the actor for the driver"
    assert len(list(tmp_path.glob("clients-*"))) >= 5  # more than the actor forwards without waiting
    assert found == [outcome(loaded(GIVEN), InProcessBackend(), **settings)]
