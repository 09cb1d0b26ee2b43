"""The backend on Ray, which only modules called `ray_*` import: a server actor, client actors, object references.

One round: the server packs its messages into one object; every client actor gets one work list and that object's
reference; uploads go from actor to server without passing through the driver. Who the actors are and how they are
kept alive is in `ray_crew`, how they are asked in `ray_calls`, how a commit leaves them in `ray_saving`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights, pack
from raysim.engine.backend import Files, LostError, RoundReport, Startup, measured_in_turn, sorted_out
from raysim.engine.host import Failed, Measured, Moved, Turn, joins
from raysim.engine.pace import Pace
from raysim.engine.placement import Plan, assign
from raysim.engine.pressure import Pressure
from raysim.engine.ray_actors import STREAM_S, private_mb
from raysim.engine.ray_calls import uninterrupted
from raysim.engine.ray_crew import Crew, Member
from raysim.engine.ray_saving import LONG_ROUND_S, Saving
from raysim.engine.store import Store
from raysim.engine.world import World


class RayBackend:
    """See `raysim.engine.backend.Backend`.

    Attributes:
        crew: the actors.
        owner: client -> the host that holds its state; nobody does before its first turn.
    """

    world: World
    pace: Pace
    images: Callable[[], NDArray[np.uint8]]

    def __init__(self, crew: Crew) -> None:
        self.crew, self.calls = crew, crew.calls
        self.owner: dict[ClientId, Member] = {}
        self.saving: Saving | None = None  # the last commit

    @property
    def plan(self) -> Plan:
        """What there is; it changes as nodes leave and join."""
        return self.crew.plan

    def start(self, world: World, images: Callable[[], NDArray[np.uint8]]) -> None:
        self.world, self.images, self.pace = world, images, Pace(world)
        self._share()
        self._begin()

    def startup(self) -> Startup | None:
        return self.crew.startup

    def recover(self) -> list[str]:
        self.saving = None
        self.calls.await_control_store("going back")
        notes = self.crew.replace_dead()
        try:
            self._begin()
        except LostError:
            # It may be what all share that is gone. If it is something else, that will show again.
            self._share()
            self._begin()
        self.calls.until_s = None
        return notes

    def restore(self, clients: Iterable[Mapping[ClientId, Weights]], server: bytes) -> None:
        where = "going back to a commit"
        for part in clients:
            spread = self._spread(part)
            self._own(spread)
            # One file at a time: a commit may be larger than the object store.
            moved = [
                host.actor.adopt.remote({k: Moved(pack(part[k]), unsaved=False) for k in ids})
                for host, ids in spread.items()
            ]
            self.calls.get(moved, where)
        self.calls.get([host.actor.settled.remote() for host in self.crew.hosts], where)
        self.calls.get(self.crew.server.actor.restore.remote(server), where)

    def round(
        self,
        t: int,
        cohort: Sequence[ClientId],
        evaluate: bool,
        progress: Callable[[int], None],
        without: Collection[ClientId] = (),
        store: Store | None = None,
    ) -> RoundReport:
        where = f"round {t}"
        began_s = perf_counter()
        self.crew.take_in()
        server = self.crew.server.actor
        cost_s = {k: self.pace.expected_s(k) for k in cohort}
        lists = self._work_lists(cost_s)
        moves: dict[tuple[Member, Member], list[ClientId]] = {}  # (old host, new host) -> clients
        for host, ids in lists.items():
            for k in ids:
                if self.owner.get(k, host) is not host:
                    moves.setdefault((self.owner[k], host), []).append(k)
        late = evaluate and self.world.evaluate_when == "after_update"
        with uninterrupted():
            outbox = server.send.remote(t, cohort)
            # Old owners give up before any new work is queued behind it.
            given = {(old, new): old.actor.release.remote(ids) for (old, new), ids in moves.items()}
            self.calls.needs = [outbox, *given.values()]
            work: dict[Any, tuple[Member, Any]] = {}  # what to wait for -> (host, uploads, None if they are streamed)
            for host, ids in lists.items():
                moved = [states for (_, new), states in given.items() if new is host]
                args = (t, ids, evaluate, without, outbox, *moved)
                if self.crew.far or sum(cost_s[k] for k in ids) < STREAM_S:
                    uploads, report = host.actor.work_at_once.options(num_returns=2).remote(*args)
                    work[report] = host, uploads
                else:
                    work[host.actor.work.options(num_returns="streaming").remote(*args)] = host, None
            if self.saving is not None:
                self.saving.ask()  # here: the answers come while actors test their models
            # Queued behind the work, so that actors test their models while the server updates.
            tests = [host.actor.measure.remote(ids) for host, ids in lists.items()] if late else []
            saving = None if store is None else Saving(t, store, self.crew)
        self._own(lists)
        for host, ids in lists.items():
            host.at_work = list(ids)
        collected, turns = self._collect(work, where, progress)
        updated = server.update.remote(t, *collected)
        files = None
        if saving is not None:
            self.saving, files = saving, saving.with_server()
            if perf_counter() - began_s > LONG_ROUND_S:
                saving.ask()
        taken, failed = sorted_out(cohort, turns)
        measured = {k: one for part in self.calls.get(tests, where) for k, one in part.items()}
        measured = measured or measured_in_turn(taken)
        of_server, self.crew.server.usage = self.calls.get(updated, where)
        self.pace.learn(taken, measured)
        return RoundReport(taken, measured, of_server, sum(map(len, moves.values())), failed, files)

    def measure(self, ids: Sequence[ClientId]) -> Mapping[ClientId, Measured]:
        parts = [host.actor.measure.remote(part) for host, part in self._spread_thin(ids).items()]
        found = {k: one for part in self.calls.get(parts, "a test of all clients") for k, one in part.items()}
        return {k: found[k] for k in ids}

    def save(self, t: int, store: Store) -> Files:
        self.saving = Saving(t, store, self.crew)
        self.saving.ask()
        return self.saving.with_server()

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        where = "the fingerprints"
        parts = [host.actor.fingerprints.remote(part) for host, part in self._spread(ids).items()]
        found = {k: one for part in self.calls.get(parts, where) for k, one in part.items()}
        return found, self.calls.get(self.crew.server.actor.fingerprints.remote(), where)

    def digests(self) -> tuple[dict[ClientId, str], str]:
        where = "the digest"
        everyone = self._spread_thin(range(self.world.num_clients))
        parts = [host.actor.digests.remote(ids) for host, ids in everyone.items()]
        found = {k: sha for part in self.calls.get(parts, where) for k, sha in part.items()}
        return found, self.calls.get(self.crew.server.actor.digest.remote(), where)

    def hurry(self, patience_s: float) -> None:
        self.calls.hurry(patience_s)

    def memory(self) -> tuple[float, float]:
        used = [member.usage for member in self.crew.everyone if member.usage is not None]
        private = private_mb() + sum(usage.private_mb for usage in used)
        return private, max((usage.gpu_peak_mb for usage in used), default=0.0)

    def pressure(self) -> Mapping[str, tuple[Pressure, Pressure | None]]:
        looked = [(m.place.machine, m.usage.pressure) for m in self.crew.everyone if m.usage and m.usage.pressure]
        by_node: dict[str, tuple[Pressure, Pressure | None]] = {}
        for name, (host, gpu) in looked:
            before, gpu_before = by_node.get(name, (host, gpu))
            # Each process knows its own reserve on a GPU only, so the smallest answer is nearest the truth.
            gpus = [one for one in (gpu, gpu_before) if one is not None]
            least = min(gpus, key=lambda one: one.share, default=None)
            by_node[name] = max(host, before, key=lambda one: one.share), least
        return by_node

    def close(self) -> None:
        self.crew.close()

    def pids(self) -> list[int]:
        """Processes of the client actors, then of the server."""
        return list(self.calls.get([m.actor.pid.remote() for m in self.crew.everyone], "asking for processes"))

    # -- inside ------------------------------------------------------------------------------------

    def _share(self) -> None:
        """Put what every actor needs into the object store, where it stays."""
        put = partial(self.calls.told, where="sharing the images")
        self.image_ref, self.world_ref = put(partial(ray.put, self.images())), put(partial(ray.put, self.world))

    def _begin(self) -> None:
        """Make every host and the server as they are before round 1."""
        self.owner = {}
        self.crew.begin(self.world_ref, self.image_ref)
        hellos = []
        if joins(self.world.algorithm):
            everyone = self._spread(range(self.world.num_clients))
            self._own(everyone)
            hellos = [host.actor.join.remote(ids) for host, ids in everyone.items()]
        self.calls.get(self.crew.server.actor.start.remote(*hellos), "round 0")

    def _own(self, lists: Mapping[Member, Iterable[ClientId]]) -> None:
        self.owner |= {k: host for host, ids in lists.items() for k in ids}

    def _work_lists(self, cost_s: Mapping[ClientId, float]) -> dict[Member, list[ClientId]]:
        """Who trains whom in this round, from the seconds that each participant is expected to take."""
        number = {host: i for i, host in enumerate(self.crew.hosts)}
        owner = {k: number[self.owner[k]] for k in cost_s if k in self.owner}
        lists = assign(cost_s, cost_s, owner, self.plan.groups)
        return {self.crew.hosts[i]: ids for i, ids in lists.items()}

    def _collect(
        self, work: dict[Any, tuple[Member, Any]], where: str, progress: Callable[[int], None]
    ) -> tuple[list[Any], dict[ClientId, Turn | Failed]]:
        """Take in what actors hand over, in whatever order; nothing is summed here."""
        collected: list[Any] = []
        turns: dict[ClientId, Turn | Failed] = {}
        left = dict(work)
        while left:
            ready = self.calls.first(list(left), where)
            host, uploads = left[ready]
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
            part, host.usage = self.calls.get(report, where)
            host.at_work = [k for k in host.at_work if k not in part]
            collected.append(uploads)
            turns |= part
            progress(len(turns))
        return collected, turns

    def _spread(self, ids: Iterable[ClientId]) -> dict[Member, list[ClientId]]:
        """Clients by the host that holds them; those that nobody holds yet go home."""
        parts: dict[Member, list[ClientId]] = {}
        home = self.crew.home()
        for k in ids:
            parts.setdefault(self.owner.get(k, home[k]), []).append(k)
        return parts

    def _spread_thin(self, ids: Iterable[ClientId]) -> dict[Member, list[ClientId]]:
        """As `_spread`, but clients that never had a turn are looked at by hosts that have work anyway.

        They are all as their architecture's template, which every host can make; unless each has weights of its own.
        """
        eager = self.crew.eager
        parts = self._spread(k for k in ids if k in self.owner or self.world.independent_init)
        rest = [k for k in ids if k not in self.owner and not self.world.independent_init]
        for i, k in enumerate(rest):
            parts.setdefault(eager[i % len(eager)], []).append(k)
        return parts
