"""The backend on Ray: a server actor, client actors, object references.

In one round, the server packs its messages into one object; every client actor gets one work list and a reference to
that object; uploads go from client actors to the server without passing through the driver. `pool` starts and replaces
the actors, `calls` waits for their answers, `saving` writes checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import ray
from numpy.typing import NDArray

from raysim.core.algorithm import ClientId, overrides
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.cost_model import CostModel
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import Coverage
from raysim.engine.policies.placement import Group, Layout, assign
from raysim.engine.ray.actors import STREAM_S, WorkReport, WorkResult, private_mb
from raysim.engine.ray.pool import ActorPool, ActorRecord
from raysim.engine.ray.saving import begin_save, restore
from raysim.engine.records import (
    CheckpointFile,
    ClientEvaluation,
    ClientFailure,
    ClientReport,
    CurrentTests,
    LostError,
    MemoryReport,
    Pending,
    SavedFiles,
    ServerReport,
    TrainingResult,
)


class RayBackend:
    """See `raysim.engine.backend.Backend`.

    Attributes:
        pool: the actors.
        owner: client -> the worker that holds its state; without clients that have had no round yet.
    """

    plan: Plan
    cost_model: CostModel
    raw: Callable[[], NDArray[Any]]

    def __init__(self, pool: ActorPool) -> None:
        self.pool, self.calls = pool, pool.calls
        self.owner: dict[ClientId, ActorRecord] = {}
        self.raw_ref: Any = None  # samples and plan in the object store
        self.plan_ref: Any = None

    @property
    def layout(self) -> Layout:
        """The current actors, which are fewer than planned after the loss of a node."""
        return self.pool.layout

    def start(self, plan: Plan, raw: Callable[[], NDArray[Any]]) -> float | None:
        plan.own_code.activate()  # classes of the user's files are then pickled by name
        self.plan, self.raw, self.cost_model = plan, raw, CostModel(plan)
        self._share()
        self._begin()
        return self.pool.startup_s

    def recover(self) -> None:
        self.pool.replace_dead()
        if self.raw_ref is None:  # samples and plan could not be shared when the run started
            self._share()
        try:
            self._begin()
        except LostError:
            # Perhaps the shared samples or the plan are lost. After any other loss, `LostError` is raised again.
            self._share()
            self._begin()

    def restore(self, files: SavedFiles, storage: Storage) -> None:
        clients, server = files
        parts: dict[ActorRecord, list[CheckpointFile]] = {worker: [] for worker in self.pool.clients}
        for file in clients:
            default_owner = self.pool.default_owner(file.clients)
            # Each file is read only once, by the owner of its first client. This owner then gets all clients of the
            # file.
            readers: dict[Any, list[ClientId]] = {}
            for k in file.clients:
                owner = default_owner[k]
                pinned = self.layout.groups[owner.group].pinned
                readers.setdefault(owner if pinned else owner.group, []).append(k)
            for ids in readers.values():
                reader = default_owner[ids[0]]
                self._own({reader: ids})
                parts[reader].append(file._replace(clients=tuple(ids)))
        restore(parts, server, storage, self.pool)

    def send(self, t: int, cohort: Sequence[ClientId]) -> Any:
        return self.pool.server.actor.send.remote(t, cohort)

    def train(
        self,
        t: int,
        cohort: Sequence[Group],
        broadcast: Any,
        evaluate_before: Coverage | None,
        skip: Collection[ClientId],
        progress: Callable[[int], None],
    ) -> Pending[TrainingResult]:
        cost_s = {k: self.cost_model.expected_s(t, k) for group in cohort for k in group}
        work_lists = self._work_lists(cohort, cost_s)
        lists = {worker: [k for group in groups for k in group] for worker, groups in work_lists.items()}
        released, moving = self._release_moving(lists)
        # reference to an answer -> (worker, its result, or None for a stream of results)
        work: dict[Any, tuple[ActorRecord, WorkResult | None]] = {}
        self.calls.inputs = [broadcast, *released.values()]
        for worker, ids in lists.items():
            moved = [states for (_, new), states in released.items() if new is worker]
            args = (t, work_lists[worker], evaluate_before, skip, broadcast, *moved)
            if sum(cost_s[k] for k in ids) < STREAM_S:
                refs = worker.actor.train.options(num_returns=len(WorkResult._fields)).remote(*args)
                whole = WorkResult(*refs)
                work[whole.report] = worker, whole
            else:
                stream = worker.actor.train_streaming.options(num_returns="streaming").remote(*args)
                work[stream] = worker, None
        self._own(lists)
        for worker, ids in lists.items():
            worker.pending_clients = list(ids)

        def result() -> TrainingResult:
            uploads, reports = self._collect(work, f"round {t}", progress)
            self.calls.inputs = ()  # lets the object store drop this broadcast before the next one
            trained = TrainingResult.of(cohort, uploads, reports, moving)
            self.cost_model.learn(t, trained.reports, trained.evaluations)
            return trained

        return Pending(result)

    def evaluate(
        self, groups: Sequence[Group], coverage: Coverage = "whole"
    ) -> Pending[Mapping[ClientId, ClientEvaluation]]:
        at = {group[0]: group for group in groups}
        parts = [
            worker.actor.evaluate.remote([at[k] for k in firsts], coverage)
            for worker, firsts in self._spread_thin(at).items()
        ]

        return Pending(lambda: self._joined(parts, "the evaluation of clients"))

    def evaluate_current(self, t: int) -> Pending[CurrentTests]:
        broadcast = self.pool.server.actor.current.remote(t)
        self.calls.inputs = [broadcast]
        parts = [
            worker.actor.evaluate_current.remote(t, ids, broadcast)
            for worker, ids in self._spread_thin(range(self.plan.num_clients)).items()
        ]

        def result() -> CurrentTests:
            tests = self._joined(parts, "the evaluation of all clients")
            self.calls.inputs = ()
            return tests

        return Pending(result)

    def discard(self, ids: Collection[ClientId]) -> Pending[None]:
        parts = [worker.actor.discard.remote(part) for worker, part in self._spread(ids).items()]

        def result() -> None:
            self.calls.get(parts, "discarding updates that came too late")

        return Pending(result)

    def aggregate(self, t: int, uploads: Sequence[Any], late: Collection[ClientId]) -> Pending[ServerReport]:
        answer = self.pool.server.actor.update.remote(t, late, *uploads)

        def result() -> ServerReport:
            report: ServerReport
            report, self.pool.server.usage = self.calls.get(answer, f"round {t}")
            return report

        return Pending(result)

    def save(self, t: int, storage: Storage) -> Pending[SavedFiles]:
        return begin_save(t, storage, self.pool)

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        where = "the fingerprints"
        parts = [worker.actor.fingerprints.remote(part) for worker, part in self._spread(ids).items()]
        return self._joined(parts, where), self.calls.get(self.pool.server.actor.fingerprints.remote(), where)

    def digests(self) -> tuple[dict[ClientId, str], str]:
        where = "the digest"
        everyone = self._spread_thin(range(self.plan.num_clients))
        parts = [worker.actor.digests.remote(ids) for worker, ids in everyone.items()]
        return self._joined(parts, where), self.calls.get(self.pool.server.actor.digest.remote(), where)

    def memory(self) -> MemoryReport:
        used = [worker.usage for worker in self.pool.workers if worker.usage is not None]
        return MemoryReport(
            private_mb() + sum(usage.resident_mb for usage in used),
            max((usage.gpu_peak_mb for usage in used), default=0.0),
        )

    def close(self) -> None:
        self.pool.close()

    def pids(self) -> list[int]:
        """Return the process ids of the client actors and, last, of the server."""
        return list(self.calls.get([m.actor.pid.remote() for m in self.pool.workers], "asking for processes"))

    # -- inside ------------------------------------------------------------------------------------

    def _share(self) -> None:
        """Put the samples and the plan into the object store for the whole run, because every actor needs them."""
        with self.calls.translate_errors("sharing the samples"):
            self.raw_ref, self.plan_ref = ray.put(self.raw()), ray.put(self.plan)

    def _begin(self) -> None:
        """Reset all workers and the server to their state before round 1."""
        self.owner = {}
        self.pool.begin(self.plan_ref, self.raw_ref)
        registrations = []
        if overrides(type(self.plan.algorithm), "client_register"):
            everyone = self._spread(range(self.plan.num_clients))
            self._own(everyone)
            registrations = [worker.actor.register.remote(ids) for worker, ids in everyone.items()]
        self.calls.get(self.pool.server.actor.start.remote(*registrations), "round 0")

    def _own(self, lists: Mapping[ActorRecord, Iterable[ClientId]]) -> None:
        self.owner |= {k: worker for worker, ids in lists.items() for k in ids}

    def _work_lists(self, cohort: Sequence[Group], cost_s: Mapping[ClientId, float]) -> dict[ActorRecord, list[Group]]:
        """Return worker -> groups that it trains. cost_s: expected seconds of each client."""
        number = {worker: i for i, worker in enumerate(self.pool.clients)}
        owner = {k: number[self.owner[k]] for k in cost_s if k in self.owner}
        lists = assign(cohort, cost_s, owner, self.layout.groups)
        return {self.pool.clients[i]: groups for i, groups in lists.items()}

    def _release_moving(
        self, lists: Mapping[ActorRecord, Sequence[ClientId]]
    ) -> tuple[dict[tuple[ActorRecord, ActorRecord], Any], int]:
        """Make workers release the clients that another worker trains in this round, before their new work is queued.

        Returns ((old worker, new worker) -> reference to the clients' states, number of clients).
        """
        moves: dict[tuple[ActorRecord, ActorRecord], list[ClientId]] = {}
        for worker, ids in lists.items():
            for k in ids:
                if self.owner.get(k, worker) is not worker:
                    moves.setdefault((self.owner[k], worker), []).append(k)
        released = {
            (old, new): old.actor.release.remote(ids, old.location.files == new.location.files)
            for (old, new), ids in moves.items()
        }
        return released, sum(map(len, moves.values()))

    def _collect(
        self, work: dict[Any, tuple[ActorRecord, WorkResult | None]], where: str, progress: Callable[[int], None]
    ) -> tuple[list[Any], dict[ClientId, ClientReport | ClientFailure]]:
        """Return references to uploads, and reports, in the order of arrival; they are not summed in this order."""
        uploads: list[Any] = []
        reports: dict[ClientId, ClientReport | ClientFailure] = {}
        left = dict(work)
        while left:
            ready = self.calls.wait_any(list(left), where)
            worker, result = left[ready]
            if result is not None:
                del left[ready]
            else:
                result = self._next_result(ready, where)
                if result is None:
                    del left[ready]
                    continue
            report: WorkReport = self.calls.get(result.report, where)
            worker.usage = report.memory
            worker.pending_clients = [k for k in worker.pending_clients if k not in report.reports]
            uploads.append(result.uploads)
            reports |= report.reports
            progress(len(reports))
        return uploads, reports

    def _next_result(self, stream: Iterator[Any], where: str) -> WorkResult | None:
        """Return the next result of `ClientActor.train_streaming`; None after the last one."""
        refs = list(islice(stream, len(WorkResult._fields)))
        if not refs:
            return None
        if len(refs) < len(WorkResult._fields):
            self.calls.get(refs, where)  # a failed call ends its stream with its error, which this raises
        return WorkResult(*refs)

    def _joined(self, parts: Sequence[Any], where: str) -> dict[ClientId, Any]:
        """Return the actors' answers by client, in client-id order."""
        answers = {k: one for part in self.calls.get(parts, where) for k, one in part.items()}
        return {k: answers[k] for k in sorted(answers)}

    def _spread(self, ids: Iterable[ClientId]) -> dict[ActorRecord, list[ClientId]]:
        """Return worker -> clients that it holds, or that it would get in their first round."""
        parts: dict[ActorRecord, list[ClientId]] = {}
        ids = list(ids)
        default_owner = self.pool.default_owner(k for k in ids if k not in self.owner)
        for k in ids:
            parts.setdefault(self.owner[k] if k in self.owner else default_owner[k], []).append(k)
        return parts

    def _spread_thin(self, ids: Iterable[ClientId]) -> dict[ActorRecord, list[ClientId]]:
        """Return worker -> clients as `_spread` does, but with clients that never took part at initial workers only.

        Unless each client has separate initial weights, these clients' models equal their architecture's template,
        which every worker can make. The worker is one of the client's group, and so has its device.
        """
        parts = self._spread(k for k in ids if k in self.owner or self.plan.separate_init)
        rest = [k for k in ids if k not in self.owner and not self.plan.separate_init]
        for k, worker in self.pool.default_owner(rest, initial=True).items():
            parts.setdefault(worker, []).append(k)
        return parts
