"""The backend on Ray: a server actor, client actors, object references.

One round: the server packs its messages into one object; every client actor gets one work list and that object's
reference; uploads go from actor to server without passing through the driver. Who the actors are and how they are
kept alive is in `pool`, how they are asked in `calls`, how a checkpoint leaves them in `saving`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights, pack
from raysim.engine.backend import RoundReport
from raysim.engine.checkpoint.format import PendingFiles
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.memory import MemoryUsage
from raysim.engine.policies.cost_model import CostModel
from raysim.engine.policies.placement import Plan, assign
from raysim.engine.ray.actors import STREAM_S, private_mb
from raysim.engine.ray.calls import uninterrupted
from raysim.engine.ray.pool import ActorPool, Worker
from raysim.engine.ray.saving import LONG_ROUND_S, CheckpointWrite
from raysim.engine.records import (
    ClientEvaluation,
    ClientFailure,
    ClientReport,
    ClientState,
    LostError,
    Startup,
    evaluations_before_training,
    split_failures,
)
from raysim.engine.spec import RunSpec
from raysim.engine.workers.client import registers


class RayBackend:
    """See `raysim.engine.backend.Backend`.

    Attributes:
        crew: the actors.
        owner: client -> the host that holds its state; nobody does before its first turn.
    """

    spec: RunSpec
    pace: CostModel
    images: Callable[[], NDArray[np.uint8]]

    def __init__(self, pool: ActorPool) -> None:
        self.pool, self.calls = pool, pool.calls
        self.owner: dict[ClientId, Worker] = {}
        self.saving: CheckpointWrite | None = None  # the last checkpoint

    @property
    def plan(self) -> Plan:
        """What there is; it changes as nodes leave and join."""
        return self.pool.plan

    def start(self, spec: RunSpec, images: Callable[[], NDArray[np.uint8]]) -> None:
        self.spec, self.images, self.pace = spec, images, CostModel(spec)
        self._share()
        self._begin()

    def startup(self) -> Startup | None:
        return self.pool.startup

    def recover(self) -> list[str]:
        self.saving = None
        self.calls.wait_for_gcs("going back")
        notes = self.pool.replace_dead()
        try:
            self._begin()
        except LostError:
            # It may be what all share that is gone. If it is something else, that will show again.
            self._share()
            self._begin()
        self.calls.deadline_s = None
        return notes

    def restore(self, clients: Iterable[Mapping[ClientId, Weights]], server: bytes) -> None:
        where = "going back to a checkpoint"
        for part in clients:
            spread = self._spread(part)
            self._own(spread)
            # One file at a time: a checkpoint may be larger than the object store.
            moved = [
                worker.actor.adopt.remote({k: ClientState(pack(part[k]), unsaved=False) for k in ids})
                for worker, ids in spread.items()
            ]
            self.calls.get(moved, where)
        self.calls.get([worker.actor.mark_saved.remote() for worker in self.pool.clients], where)
        self.calls.get(self.pool.server.actor.restore.remote(server), where)

    def round(
        self,
        t: int,
        cohort: Sequence[ClientId],
        evaluate: bool,
        progress: Callable[[int], None],
        without: Collection[ClientId] = (),
        storage: Storage | None = None,
    ) -> RoundReport:
        where = f"round {t}"
        began_s = perf_counter()
        self.pool.add_new_actors()
        server = self.pool.server.actor
        cost_s = {k: self.pace.expected_s(k) for k in cohort}
        lists = self._work_lists(cost_s)
        moves: dict[tuple[Worker, Worker], list[ClientId]] = {}  # (old host, new host) -> clients
        for worker, ids in lists.items():
            for k in ids:
                if self.owner.get(k, worker) is not worker:
                    moves.setdefault((self.owner[k], worker), []).append(k)
        late = evaluate and self.spec.evaluate_when == "after_update"
        with uninterrupted():
            broadcast = server.send.remote(t, cohort)
            # Old owners give up before any new work is queued behind it.
            given = {(old, new): old.actor.release.remote(ids) for (old, new), ids in moves.items()}
            self.calls.inputs = [broadcast, *given.values()]
            work: dict[Any, tuple[Worker, Any]] = {}  # what to wait for -> (host, uploads, None if they are streamed)
            for worker, ids in lists.items():
                moved = [states for (_, new), states in given.items() if new is worker]
                args = (t, ids, evaluate, without, broadcast, *moved)
                if self.pool.via_ray_client or sum(cost_s[k] for k in ids) < STREAM_S:
                    uploads, report = worker.actor.train_all.options(num_returns=2).remote(*args)
                    work[report] = worker, uploads
                else:
                    work[worker.actor.train.options(num_returns="streaming").remote(*args)] = worker, None
            if self.saving is not None:
                self.saving.ask()  # here: the answers come while actors test their models
            # Queued behind the work, so that actors test their models while the server updates.
            tests = [worker.actor.evaluate.remote(ids) for worker, ids in lists.items()] if late else []
            saving = None if storage is None else CheckpointWrite(t, storage, self.pool)
        self._own(lists)
        for worker, ids in lists.items():
            worker.pending_clients = list(ids)
        collected, client_reports = self._collect(work, where, progress)
        updated = server.update.remote(t, *collected)
        files = None
        if saving is not None:
            self.saving, files = saving, saving.with_server()
            if perf_counter() - began_s > LONG_ROUND_S:
                saving.ask()
        taken, failed = split_failures(cohort, client_reports)
        evaluations = {k: one for part in self.calls.get(tests, where) for k, one in part.items()}
        evaluations = evaluations or evaluations_before_training(taken)
        of_server, self.pool.server.usage = self.calls.get(updated, where)
        self.pace.learn(taken, evaluations)
        return RoundReport(taken, evaluations, of_server, sum(map(len, moves.values())), failed, files)

    def evaluate(self, ids: Sequence[ClientId]) -> Mapping[ClientId, ClientEvaluation]:
        parts = [worker.actor.evaluate.remote(part) for worker, part in self._spread_thin(ids).items()]
        found = {k: one for part in self.calls.get(parts, "a test of all clients") for k, one in part.items()}
        return {k: found[k] for k in ids}

    def save(self, t: int, storage: Storage) -> PendingFiles:
        self.saving = CheckpointWrite(t, storage, self.pool)
        self.saving.ask()
        return self.saving.with_server()

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        where = "the fingerprints"
        parts = [worker.actor.fingerprints.remote(part) for worker, part in self._spread(ids).items()]
        found = {k: one for part in self.calls.get(parts, where) for k, one in part.items()}
        return found, self.calls.get(self.pool.server.actor.fingerprints.remote(), where)

    def digests(self) -> tuple[dict[ClientId, str], str]:
        where = "the digest"
        everyone = self._spread_thin(range(self.spec.num_clients))
        parts = [worker.actor.digests.remote(ids) for worker, ids in everyone.items()]
        found = {k: sha for part in self.calls.get(parts, where) for k, sha in part.items()}
        return found, self.calls.get(self.pool.server.actor.digest.remote(), where)

    def set_deadline(self, patience_s: float) -> None:
        self.calls.set_deadline(patience_s)

    def memory(self) -> tuple[float, float]:
        used = [worker.usage for worker in self.pool.workers if worker.usage is not None]
        private = private_mb() + sum(usage.private_mb for usage in used)
        return private, max((usage.gpu_peak_mb for usage in used), default=0.0)

    def memory_usage(self) -> Mapping[str, tuple[MemoryUsage, MemoryUsage | None]]:
        looked = [
            (m.location.address, m.usage.memory_usage) for m in self.pool.workers if m.usage and m.usage.memory_usage
        ]
        by_node: dict[str, tuple[MemoryUsage, MemoryUsage | None]] = {}
        for name, (worker, gpu) in looked:
            before, gpu_before = by_node.get(name, (worker, gpu))
            # Each process knows its own reserve on a GPU only, so the smallest answer is nearest the truth.
            gpus = [one for one in (gpu, gpu_before) if one is not None]
            least = min(gpus, key=lambda one: one.share, default=None)
            by_node[name] = max(worker, before, key=lambda one: one.share), least
        return by_node

    def close(self) -> None:
        self.pool.close()

    def pids(self) -> list[int]:
        """Processes of the client actors, then of the server."""
        return list(self.calls.get([m.actor.pid.remote() for m in self.pool.workers], "asking for processes"))

    # -- inside ------------------------------------------------------------------------------------

    def _share(self) -> None:
        """Put what every actor needs into the object store, where it stays."""
        with self.calls.translate_errors("sharing the images"):
            self.image_ref, self.spec_ref = ray.put(self.images()), ray.put(self.spec)

    def _begin(self) -> None:
        """Make every host and the server as they are before round 1."""
        self.owner = {}
        self.pool.begin(self.spec_ref, self.image_ref)
        registrations = []
        if registers(self.spec.algorithm):
            everyone = self._spread(range(self.spec.num_clients))
            self._own(everyone)
            registrations = [worker.actor.register.remote(ids) for worker, ids in everyone.items()]
        self.calls.get(self.pool.server.actor.start.remote(*registrations), "round 0")

    def _own(self, lists: Mapping[Worker, Iterable[ClientId]]) -> None:
        self.owner |= {k: worker for worker, ids in lists.items() for k in ids}

    def _work_lists(self, cost_s: Mapping[ClientId, float]) -> dict[Worker, list[ClientId]]:
        """Who trains whom in this round, from the seconds that each participant is expected to take."""
        number = {worker: i for i, worker in enumerate(self.pool.clients)}
        owner = {k: number[self.owner[k]] for k in cost_s if k in self.owner}
        lists = assign(cost_s, cost_s, owner, self.plan.groups)
        return {self.pool.clients[i]: ids for i, ids in lists.items()}

    def _collect(
        self, work: dict[Any, tuple[Worker, Any]], where: str, progress: Callable[[int], None]
    ) -> tuple[list[Any], dict[ClientId, ClientReport | ClientFailure]]:
        """Take in what actors hand over, in whatever order; nothing is summed here."""
        collected: list[Any] = []
        client_reports: dict[ClientId, ClientReport | ClientFailure] = {}
        left = dict(work)
        while left:
            ready = self.calls.wait_any(list(left), where)
            worker, uploads = left[ready]
            report = ready
            if uploads is not None:
                del left[ready]
            else:
                try:
                    uploads = next(ready)
                    # The first of a pair may be the error of the whole work list; the second is then missing.
                    report = next(ready, uploads)
                except StopIteration:
                    del left[ready]
                    continue
            part, worker.usage = self.calls.get(report, where)
            worker.pending_clients = [k for k in worker.pending_clients if k not in part]
            collected.append(uploads)
            client_reports |= part
            progress(len(client_reports))
        return collected, client_reports

    def _spread(self, ids: Iterable[ClientId]) -> dict[Worker, list[ClientId]]:
        """Clients by the host that holds them; those that nobody holds yet go home."""
        parts: dict[Worker, list[ClientId]] = {}
        default_owner = self.pool.default_owner()
        for k in ids:
            parts.setdefault(self.owner.get(k, default_owner[k]), []).append(k)
        return parts

    def _spread_thin(self, ids: Iterable[ClientId]) -> dict[Worker, list[ClientId]]:
        """As `_spread`, but clients that never had a turn are looked at by hosts that have work anyway.

        They are all as their architecture's template, which every host can make; unless each has weights of its own.
        """
        initial_workers = self.pool.initial_workers
        parts = self._spread(k for k in ids if k in self.owner or self.spec.independent_init)
        rest = [k for k in ids if k not in self.owner and not self.spec.independent_init]
        for i, k in enumerate(rest):
            parts.setdefault(initial_workers[i % len(initial_workers)], []).append(k)
        return parts
