"""The backend on Ray, which only modules called `ray_*` import: a server actor, client actors, object references.

One round: the server packs its messages into one object; every client actor gets one work list and that object's
reference; uploads go from actor to server without passing through the driver.
"""

from __future__ import annotations

import contextlib
import math
import re
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
import ray
import ray.util.client
from numpy.typing import NDArray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.core.algorithm import ClientId
from raysim.core.errors import RaysimError, RunError, ScenarioError
from raysim.core.messages import Weights, pack
from raysim.engine.backend import Files, LostError, RoundReport, Startup, measured_in_turn, sorted_out
from raysim.engine.commits import Bytes, Part
from raysim.engine.host import Failed, Measured, Moved, Turn, joins
from raysim.engine.placement import Group, Machine, Node, Plan, assign, seats
from raysim.engine.pressure import Pressure
from raysim.engine.ray_actors import STREAM_S, HostActor, ServerActor, Usage, private_mb
from raysim.engine.ray_session import nodes
from raysim.engine.store import Store
from raysim.engine.world import World

START_TIMEOUT_S = 300.0
"""How long it is waited for one more actor to come up; a thousand may take longer together."""

ANSWER_S = 10.0
"""How long an actor may take to answer after another died; one that is busy for longer is replaced as well."""

SLOW_START_S = 30.0
"""After how long a user is told that actors are not up yet."""

MANY_ACTORS = 10
"""From so many on a user is told how long they took to come up: then it is worth knowing what one more costs."""

LOOK_FOR_NODES_S = 5.0
"""How often it is looked for nodes that joined; a look costs a millisecond of a round."""

PATIENCE_S = 0.2
"""How long a commit waits for the next round to begin, behind whose work it is asked for."""

LOOK_S = 2.0
"""How often it is looked whether there still is room for actors that do not come up."""

_SERVER, _DRIVER = -1, -2
"""Numbers of what is no client actor."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back for a moment; a task that is half handed to Ray dies with a traceback of Ray's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    before = {
        number: signal.signal(number, lambda number, frame: arrived.append((number, frame)))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for got, frame in arrived[:1]:
        handler = before[signal.Signals(got)]
        if callable(handler):
            handler(got, frame)
        elif handler == signal.SIG_DFL:
            signal.raise_signal(got)


@dataclass
class _Saving:
    """Clients of one commit that are being written, while actors go on with the next round."""

    t: int
    begun: list[tuple[Any, Any]] = field(default_factory=list)  # (actor, when its files are ready to be written)
    relayed: list[Any] = field(default_factory=list)  # files of actors that do not reach the store
    asked: list[Any] = field(default_factory=list)  # their answers: the files, written
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)  # whether they were asked

    def ask(self) -> None:
        """Ask the actors, once: an answer waits for the disk, so the question is best queued behind other work."""
        with self.lock:
            if not self.done.is_set():
                self.asked = [actor.saved.remote(self.t) for actor, _ in self.begun]
                self.done.set()

    def answers(self) -> list[Any]:
        """What to wait for. Called behind the rounds; when no round follows, nobody else asks."""
        self.done.wait(PATIENCE_S)
        self.ask()
        return self.asked


@dataclass
class RayBackend:
    """See `raysim.engine.backend.Backend`. Actors are created at once, so that they import meanwhile."""

    plan: Plan
    pack: bool = False  # fill one node after another
    head: bool = True  # whether client actors may live on the head node
    replan: Callable[[Machine], Plan] | None = None  # what to have when nodes joined; None: what `plan` says
    note: Callable[[str], None] = lambda text: None  # tell the user
    participants: int | None = None  # per round; as many actors test clients that never had a turn. None: all do
    hosts: list[Any] = field(default_factory=list)
    world: World = field(init=False)
    images: Callable[[], NDArray[np.uint8]] = field(init=False)
    known: set[str] = field(init=False)  # ids of the nodes that were there when it was last looked
    node: dict[int, str] = field(init=False)  # actor (-1: the server) -> id of the node it lives on
    owner: dict[ClientId, int] = field(init=False)  # client -> the actor that holds its state
    usage: dict[int, Usage] = field(init=False)  # actor (-1: the server) -> its memory
    pace: dict[str, float] = field(init=False)  # architecture -> measured seconds per sample of a turn

    def __post_init__(self) -> None:
        self.far = bool(ray.util.client.ray.is_connected())  # through Ray Client, which has no streams
        self.hosts = []
        self.asked_s: list[float] = []  # perf_counter() when each host was asked for; empty once they were waited for
        self.started: Startup | None = None
        for group, seated in zip(self.plan.groups, self._room(), strict=True):
            for i in range(group.actors):
                self.asked_s.append(perf_counter())
                self.hosts.append(self._new_host(group, *seated[i : i + 1]))
        self.server = self._new_server()
        for actor in [*(self.hosts[a] for a in self._eager()), self.server]:
            actor.warm.remote()
        self.joining: list[tuple[int, Any, Any]] = []  # (group, actor, its answer), started on nodes that joined
        self.looked_s = perf_counter()  # when it was last looked for such nodes
        self.saving: _Saving | None = None  # the last commit
        self.lost_s: float | None = None  # when something was first found to be lost; None: nothing is

    def start(self, world: World, images: Callable[[], NDArray[np.uint8]]) -> None:
        self.world, self.images, self.pace = world, images, {}
        self._share()
        self._begin()

    def startup(self) -> Startup | None:
        return self.started

    def recover(self) -> list[str]:
        self.saving = None
        notes = self._replace_dead()
        began = perf_counter()
        while not self._up() and perf_counter() - began < START_TIMEOUT_S:
            # It takes Ray a while to see that a node is gone, and with it the room for an actor.
            if any(len(seated) < group.actors for group, seated in zip(self.plan.groups, self._room(), strict=True)):
                notes += self._replace_dead()
        try:
            self._begin()
        except LostError:
            # It may be what all share that is gone. If it is something else, that will show again.
            self._share()
            self._begin()
        self.lost_s = None
        return notes

    def restore(self, clients: Iterable[Mapping[ClientId, Weights]], server: bytes) -> None:
        where = "going back to a commit"
        for part in clients:
            spread = self._spread(part)
            self.owner |= {k: actor for actor, ids in spread.items() for k in ids}
            # One file at a time: a commit may be larger than the object store.
            moved = [
                self.hosts[actor].adopt.remote({k: Moved(pack(part[k]), unsaved=False) for k in ids})
                for actor, ids in spread.items()
            ]
            self._get(moved, where)
        self._get([host.settled.remote() for host in self.hosts], where)
        self._get(self.server.restore.remote(server), where)

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
        self._take_in()
        lists = assign(cohort, {k: self._expected(k) for k in cohort}, self.owner, self.plan.groups)
        moves: dict[tuple[int, int], list[ClientId]] = {}  # (old actor, new actor) -> clients
        for actor, ids in lists.items():
            for k in ids:
                if self.owner.get(k, actor) != actor:
                    moves.setdefault((self.owner[k], actor), []).append(k)
        late = evaluate and self.world.evaluate_when == "after_update"
        with uninterrupted():
            outbox = self.server.send.remote(t, cohort)
            # Old owners give up before any new work is queued behind it.
            given = {(old, new): self.hosts[old].release.remote(ids) for (old, new), ids in moves.items()}
            work: dict[Any, tuple[int, Any]] = {}  # what to wait for -> (actor, uploads, None if they are streamed)
            for actor, ids in lists.items():
                moved = [states for (_, new), states in given.items() if new == actor]
                args = (t, ids, evaluate, without, outbox, *moved)
                if self.far or sum(self._expected(k) for k in ids) < STREAM_S:
                    uploads, report = self.hosts[actor].work_at_once.options(num_returns=2).remote(*args)
                    work[report] = actor, uploads
                else:
                    work[self.hosts[actor].work.options(num_returns="streaming").remote(*args)] = actor, None
            self._ask()  # here: the answers come while actors test their models
            # Queued behind the work, so that actors test their models while the server updates.
            tests = [self.hosts[actor].measure.remote(ids) for actor, ids in lists.items()] if late else []
            saving = None if store is None else self._save_clients(t, store)
        self.owner |= {k: actor for actor, ids in lists.items() for k in ids}
        collected, turns = self._collect(work, where, progress)
        updated = self.server.update.remote(t, *collected)
        files = self._saved(t, store, saving) if store is not None and saving is not None else None
        taken, failed = sorted_out(cohort, turns)
        measured = {k: one for part in self._get(tests, where) for k, one in part.items()} or measured_in_turn(taken)
        of_server, self.usage[_SERVER] = self._get(updated, where)
        self._learn(taken, measured)
        return RoundReport(taken, measured, of_server, sum(map(len, moves.values())), failed, files)

    def measure(self, ids: Sequence[ClientId]) -> Mapping[ClientId, Measured]:
        parts = [self.hosts[actor].measure.remote(part) for actor, part in self._spread_thin(ids).items()]
        found = {k: one for part in self._get(parts, "a test of all clients") for k, one in part.items()}
        return {k: found[k] for k in ids}

    def save(self, t: int, store: Store) -> Files:
        saving = self._save_clients(t, store)
        self._ask()
        return self._saved(t, store, saving)

    def _reachable(self, actor: int, store: Store) -> Store | None:
        # What is a folder of this machine is not one of another.
        return store if store.everywhere or self.node[actor] == self.node[_DRIVER] else None

    def _save_clients(self, t: int, store: Store) -> _Saving:
        """Have clients written: by their actors, or where those do not reach the store, here."""
        self.saving = saving = _Saving(t)
        for actor, host in enumerate(self.hosts):
            if here := self._reachable(actor, store):
                saving.begun.append((host, host.save.remote(t, here)))
            elif self.far:
                saving.relayed.append(host.relay_at_once.remote(t))
            else:
                # A few files at a time: all clients of a node may be more than the object store can hold.
                some = {"num_returns": "streaming", "_generator_backpressure_num_objects": 4}
                saving.relayed.append(host.relay.options(**some).remote(t))
        return saving

    def _ask(self) -> None:
        """Queue the question whether the files of the last commit are written."""
        if self.saving is not None:
            self.saving.ask()

    def _saved(self, t: int, store: Store, saving: _Saving) -> Files:
        """Queue the writing of the server, behind its update; what is returned waits for all."""
        where = f"the commit of round {t}"
        server = self.server.save.remote(t, self._reachable(_SERVER, store))

        def files() -> tuple[list[Part], Part]:
            self._get([begun for _, begun in saving.begun], where)
            answers = self._unless_lost(saving.answers(), where)
            parts: list[Part] = [part for written in self._get(answers, where) for part in written]
            for answer in saving.relayed:
                if self.far:
                    parts += [self._written(one, store) for one in self._get(answer, where)]
                else:
                    parts += self._told(partial(self._all_written, answer, store), where)
            return sorted(parts, key=lambda part: part.name), self._written(self._get(server, where), store)

        return files

    def _unless_lost(self, answers: list[Any], where: str) -> list[Any]:
        """Wait for answers, but once the run has to go back, not for actors that are at work for long."""
        left = answers
        while left:
            _, left = self._told(partial(ray.wait, left, num_returns=len(left), timeout=LOOK_S), where)
            if left and self.lost_s is not None and perf_counter() - self.lost_s > ANSWER_S:
                raise LostError(f"{where}: those who write it are still at work on the next one")
        return answers

    def _all_written(self, stream: Any, store: Store) -> list[Part]:
        return [self._written(ray.get(ref), store) for ref in stream]

    def _written(self, saved: tuple[Part, Bytes | None], store: Store) -> Part:
        """The file of a commit, written here if the actor could not."""
        part, data = saved
        if data is not None:
            store.write(part.name, data)
        return part

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        parts = [self.hosts[a].fingerprints.remote(part) for a, part in self._spread(ids).items()]
        found = {k: one for part in self._get(parts, "the fingerprints") for k, one in part.items()}
        return found, self._get(self.server.fingerprints.remote(), "the fingerprints")

    def digests(self) -> tuple[dict[ClientId, str], str]:
        everyone = self._spread_thin(range(self.world.num_clients))
        parts = [self.hosts[a].digests.remote(ids) for a, ids in everyone.items()]
        found = {k: sha for part in self._get(parts, "the digest") for k, sha in part.items()}
        return found, self._get(self.server.digest.remote(), "the digest")

    def memory(self) -> tuple[float, float]:
        private = private_mb() + sum(usage.private_mb for usage in self.usage.values())
        return private, max((usage.gpu_peak_mb for usage in self.usage.values()), default=0.0)

    def pressure(self) -> Mapping[str, tuple[Pressure, Pressure | None]]:
        found = {actor: usage.pressure for actor, usage in self.usage.items() if usage.pressure is not None}
        if not found:
            return {}
        names = {node.id: node.name for node in nodes()}
        by_node: dict[str, tuple[Pressure, Pressure | None]] = {}
        for actor, (host, gpu) in found.items():
            name = names.get(self.node[actor], "that is gone")
            before, gpu_before = by_node.get(name, (host, gpu))
            # Each process knows its own reserve on a GPU only, so the smallest answer is nearest the truth.
            gpus = [one for one in (gpu, gpu_before) if one is not None]
            least = min(gpus, key=lambda one: one.share, default=None)
            by_node[name] = max(host, before, key=lambda one: one.share), least
        return by_node

    def close(self) -> None:
        if ray.is_initialized():
            for actor in [*self.hosts, self.server]:
                ray.kill(actor)
        self.hosts.clear()

    def pids(self) -> list[int]:
        """Processes of the client actors, then of the server."""
        return list(self._get([actor.pid.remote() for actor in [*self.hosts, self.server]], "asking for processes"))

    # -- inside ------------------------------------------------------------------------------------

    def _new_host(self, group: Group, seat: Node | None = None) -> Any:
        """An actor on this node; without one, where Ray finds room. Others may have taken the room meanwhile, so a seat
        is a wish, unless the head node is to be kept free."""
        strategy: Any = "SPREAD" if seat is None else NodeAffinitySchedulingStrategy(seat.id, soft=self.head)
        options = ray.remote(HostActor).options(
            num_cpus=group.cpus_per_actor, num_gpus=group.gpus_per_actor, scheduling_strategy=strategy
        )
        return options.remote()

    def _eager(self) -> list[int]:
        """Actors that have work from the start: all, but where clients are pinned, as many as test before round 1."""
        found: list[int] = []
        base = 0
        for group in self.plan.groups:
            some = min(group.actors, self.participants or group.actors) if group.pinned else group.actors
            found += range(base, base + some)
            base += group.actors
        return found

    def _new_server(self) -> Any:
        # The server works while the clients wait, so it takes no CPU away from them.
        return ray.remote(ServerActor).options(num_cpus=0).remote()

    def _here(self) -> str:
        """The id of the node that this process is on; none through Ray Client."""
        return "" if self.far else str(ray.get_runtime_context().get_node_id())

    def _share(self) -> None:
        """Put what every actor needs into the object store, where it stays."""
        self.image_ref, self.world_ref = ray.put(self.images()), ray.put(self.world)

    def _begin(self) -> None:
        """Make every host and the server as they are before round 1."""
        self.owner, self.usage = {}, {}
        shares = [group.gpus_per_actor for group in self.plan.groups for _ in range(group.actors)]
        what = [self.world_ref, self.image_ref]
        begun = [host.setup.remote(what, share) for host, share in zip(self.hosts, shares, strict=True)]
        begun.append(self.server.setup.remote(self.world_ref))
        asked_s, self.asked_s = self.asked_s, []
        up_s = self._await(begun)
        *hosts, server = self._get(begun, "starting", timeout=0)
        if asked_s:
            self.started = Startup.of(asked_s, up_s[:-1])
            self._tell_startup(self.started)
        self.known = {node.id for node in nodes(self.head)}
        self.node = {**dict(enumerate(hosts)), _SERVER: server, _DRIVER: self._here()}
        self._get([self.hosts[actor].ready.remote() for actor in self._eager()], "starting")
        hellos = []
        if joins(self.world.algorithm):
            everyone = self._spread(range(self.world.num_clients))
            self.owner |= {k: actor for actor, ids in everyone.items() for k in ids}
            hellos = [self.hosts[actor].join.remote(ids) for actor, ids in everyone.items()]
        self._get(self.server.start.remote(*hellos), "round 0")

    def _await(self, begun: Sequence[Any]) -> list[float]:
        """Until all actors are up, or none came up for `START_TIMEOUT_S`; says so when it takes long.

        Returns perf_counter() when each had answered.
        """
        began = latest = perf_counter()
        told = False
        up_s: dict[Any, float] = {}
        left = list(begun)
        while left and perf_counter() - latest < START_TIMEOUT_S:
            until = latest + START_TIMEOUT_S if told else began + SLOW_START_S
            patience = max(0.0, until - perf_counter())
            self._told(partial(ray.wait, left, num_returns=1, timeout=patience), "starting")
            # All that answered by now, so that a thousand actors are not a thousand looks at a thousand.
            ready, left = self._told(partial(ray.wait, left, num_returns=len(left), timeout=0), "starting")
            if ready:
                latest = perf_counter()
                up_s |= dict.fromkeys(ready, latest)
            if left and not told and perf_counter() - began >= SLOW_START_S:
                told = True
                self.note(
                    f"{len(up_s)} of {len(begun)} actors are up; the others are starting, or wait for CPUs or GPUs in "
                    f"use (`ray status` shows it; the run gives up if none comes up for {START_TIMEOUT_S:.0f} s)"
                )
        return [up_s.get(answer, math.inf) for answer in begun]

    def _tell_startup(self, found: Startup) -> None:
        if found.actors >= MANY_ACTORS:
            each = f"{found.per_actor_s:.2g} s per actor"
            self.note(f"{found.actors} client actors were up after {found.seconds:.3g} s ({each})")

    def _replace_dead(self) -> list[str]:
        """New actors for those that do not answer, where there is room; a group that had more goes on with fewer."""
        notes = []
        answers = {actor: host.pid.remote() for actor, host in enumerate([*self.hosts, self.server])}
        # Those that are alive may be at work on the round that was cut off: not worth a long wait.
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=ANSWER_S)
        alive = {actor for actor, ref in answers.items() if self._answered(ref)}
        if len(self.hosts) not in alive:
            ray.kill(self.server)
            self.server = self._new_server()
        for actor in set(range(len(self.hosts))) - alive:
            ray.kill(self.hosts[actor])
        for _, actor, _ in self.joining:
            ray.kill(actor)  # it may be on a node that is gone; if not, it is asked for again
        self.joining, self.known = [], set()
        room = self._room()
        hosts: list[Any] = []
        groups: list[Group] = []
        base = 0
        for group, seated in zip(self.plan.groups, room, strict=True):
            left = [self.hosts[a] for a in range(base, base + group.actors) if a in alive]
            base += group.actors
            wanted = max(min(group.actors, len(seated)), len(left), 1)
            hosts += left + [self._new_host(group) for _ in range(wanted - len(left))]
            groups.append(replace(group, actors=wanted))
            if wanted < group.actors:
                notes.append(f"there is room for {wanted} of {group.actors} actors: the run goes on with them")
        self.hosts, self.plan = hosts, replace(self.plan, groups=tuple(groups))
        return notes

    def _room(self) -> list[list[Node]]:
        return seats(self.plan.groups, nodes(self.head), self.pack)

    def _take_in(self) -> None:
        """Let actors on nodes that joined take part from the next round on; look for such nodes now and then."""
        for group, actor, answer in list(self.joining):
            if not ray.wait([answer], timeout=0)[0]:
                continue
            self.joining.remove((group, actor, answer))
            if not self._answered(answer):
                continue
            share = self.plan.groups[group].gpus_per_actor
            where = "taking in a new actor"
            at = sum(one.actors for one in self.plan.groups[: group + 1])
            node = self._get(actor.setup.remote([self.world_ref, self.image_ref], share), where)
            self.hosts.insert(at, actor)
            self.owner = {k: a + (a >= at) for k, a in self.owner.items()}
            self.node = {a + (a >= at): one for a, one in self.node.items()} | {at: node}
            self.usage = {a + (a >= at): one for a, one in self.usage.items()}
            groups = list(self.plan.groups)
            groups[group] = replace(groups[group], actors=groups[group].actors + 1)
            self.plan = replace(self.plan, groups=tuple(groups))
            self.note(f"an actor on a node that joined takes part: {len(self.hosts)} client actors now")
        if self.replan is None or perf_counter() - self.looked_s < LOOK_FOR_NODES_S:
            return
        self.looked_s = perf_counter()
        found = nodes(self.head)
        joined = [node for node in found if node.id not in self.known]
        self.known = {node.id for node in found}
        if not joined:
            return
        try:
            wanted = self.replan(Machine(sum(n.cpus for n in found), sum(n.gpus for n in found), len(found)))
        except ScenarioError:
            return
        more = [
            # A pinned group's clients stay where they are, and shares stay what they were.
            replace(has, actors=0 if has.pinned else max(0, wants.actors - has.actors))
            for has, wants in zip(self.plan.groups, wanted.groups, strict=True)
        ]
        for g, seated in enumerate(seats(more, joined, self.pack)):
            for seat in seated:
                actor = self._new_host(more[g], seat)
                self.joining.append((g, actor, actor.pid.remote()))

    def _up(self) -> bool:
        """Whether every actor answers, or is known to be dead, within a moment."""
        answers = [actor.pid.remote() for actor in [*self.hosts, self.server]]
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=LOOK_S)
        return len(ready) == len(answers)

    def _answered(self, ref: Any) -> bool:
        try:
            ray.get(ref, timeout=0)
        except RayError:  # a timeout is one, too
            return False
        return True

    def _collect(
        self, work: dict[Any, tuple[int, Any]], where: str, progress: Callable[[int], None]
    ) -> tuple[list[Any], dict[ClientId, Turn | Failed]]:
        """Take in what actors hand over, in whatever order; nothing is summed here."""
        collected: list[Any] = []
        turns: dict[ClientId, Turn | Failed] = {}
        left = dict(work)
        while left:
            (ready,), _ = self._told(partial(ray.wait, list(left), num_returns=1, fetch_local=False), where)
            actor, uploads = left[ready]
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
            part, self.usage[actor] = self._get(report, where)
            collected.append(uploads)
            turns |= part
            progress(len(turns))
        return collected, turns

    def _spread(self, ids: Iterable[ClientId]) -> dict[int, list[ClientId]]:
        """Clients by the actor that holds them; those that nobody holds yet are dealt out in their group."""
        parts: dict[int, list[ClientId]] = {}
        place: dict[ClientId, int] = {}
        base = 0
        for group in self.plan.groups:
            place |= {k: base + i % group.actors for i, k in enumerate(group.clients)}
            base += group.actors
        for k in ids:
            parts.setdefault(self.owner.get(k, place[k]), []).append(k)
        return parts

    def _spread_thin(self, ids: Iterable[ClientId]) -> dict[int, list[ClientId]]:
        """As `_spread`, but clients that never had a turn are looked at by actors that have work anyway.

        They are all as their architecture's template, which every actor can make; unless each has weights of its own.
        """
        eager = self._eager()
        parts = self._spread(k for k in ids if k in self.owner or self.world.independent_init)
        rest = [k for k in ids if k not in self.owner and not self.world.independent_init]
        for i, k in enumerate(rest):
            parts.setdefault(eager[i % len(eager)], []).append(k)
        return parts

    def _expected(self, k: ClientId) -> float:
        """Expected seconds of a client's turn: its samples at its architecture's measured pace.

        An architecture that was not measured yet counts as the mean of those that were.
        """
        known = self.pace.values()
        return self._samples(k) * self.pace.get(self.world.arch(k), sum(known) / len(known) if known else 1.0)

    def _samples(self, k: ClientId) -> int:
        """Samples that a client's turn passes through its network, and one for what each turn costs anyway."""
        return self.world.local.epochs * len(self.world.train.of(k)) + len(self.world.test.of(k)) + 1

    def _learn(self, turns: Mapping[ClientId, Turn], measured: Mapping[ClientId, Measured]) -> None:
        for k, turn in turns.items():
            seconds = (turn.train_s + (measured[k].seconds if k in measured else 0.0)) / self._samples(k)
            arch = self.world.arch(k)
            self.pace[arch] = 0.7 * self.pace[arch] + 0.3 * seconds if arch in self.pace else seconds

    def _get(self, refs: Any, where: str, timeout: float | None = None) -> Any:
        return self._told(lambda: ray.get(refs, timeout=timeout), where)

    def _told(self, call: Callable[[], Any], where: str) -> Any:
        """Make the call; an actor's failure becomes one sentence."""
        try:
            return call()
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, RaysimError | OSError):
                raise cause from None
            if isinstance(cause, RayError):  # what the task was given is gone
                raise self._lost(f"{where}: {self._obituary(cause)}") from None
            raise RunError(f"{where}: {type(cause).__name__}: {cause}") from error
        except GetTimeoutError:
            raise RunError(
                f"{where}: no more actors came up within {START_TIMEOUT_S:.0f} s; `ray status` shows what they wait for"
            ) from None
        except RayError as error:
            raise self._lost(f"{where}: {self._obituary(error)}") from None

    def _lost(self, sentence: str) -> LostError:
        if self.lost_s is None:
            self.lost_s = perf_counter()
        return LostError(sentence)

    def _obituary(self, error: RayError) -> str:
        """Who is gone and why, in a few words; Ray's own text is a page."""
        text = str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
        if not isinstance(error, RayActorError):
            return f"{type(error).__name__}: {lines[0]}"
        who = "an actor"
        for actor, host in enumerate([*self.hosts, self.server]):
            if error.actor_id == host._actor_id.hex():
                who = (
                    f"client actor {actor + 1} of {len(self.hosts)}" if actor < len(self.hosts) else "the server actor"
                )
        reasons = {
            "memory": "its machine ran out of memory",
            "node": "its node is gone",
            "ray.kill": "it was ended",
            "worker process has died": "its process ended unexpectedly",
            "unavailable": "it cannot be reached",
            "died unexpectedly": "its process ended unexpectedly",
        }
        return f"{who} died: " + next((why for sign, why in reasons.items() if sign in _cause(text)), lines[0])


def _cause(text: str) -> str:
    """The part of Ray's text on a dead actor that says why, without the guesses that follow."""
    told = re.split(r"There are some potential root causes|Some common causes", text)[0]
    return told.partition("The actor is dead because")[2] or told
