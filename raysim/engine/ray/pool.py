"""The actors of a run: brought up where there is room, replaced when they die, more of them when nodes join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import ray
import ray.util.client
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.common.errors import RunError, ScenarioError
from raysim.core.algorithm import ClientId
from raysim.engine.policies.placement import ActorGroup, ClusterResources, Node, Plan, place_actors
from raysim.engine.ray.actors import ClientActor, Place, ProcessMemory, ServerActor
from raysim.engine.ray.calls import ANSWER_S, LOOK_S, ActorCalls, answered, gcs_answers
from raysim.engine.ray.session import nodes
from raysim.engine.records import Startup

START_TIMEOUT_S = 300.0
"""How long it is waited for one more actor to come up; a thousand may take longer together."""

SLOW_START_S = 30.0
"""After how long a user is told that actors are not up yet."""

MOMENT_S = 2.0
"""How often it is looked whether there still is room for actors that do not come up."""

MANY_ACTORS = 10
"""From so many on a user is told how long they took to come up: then it is worth knowing what one more costs."""

LOOK_FOR_NODES_S = 5.0
"""How often it is looked for nodes that joined; a look costs a millisecond of a round."""


@dataclass(eq=False)
class Worker:
    """An actor of the run: a host of clients, or the server."""

    actor: Any  # Ray's handle
    asked_s: float = 0.0  # perf_counter() when it was asked for
    place: Place = Place("", "", 0)  # as it said itself; so until it is up
    usage: ProcessMemory | None = None  # what it last said of its memory
    pending_clients: list[ClientId] = field(default_factory=list)  # clients of this round that it has not handed over

    @property
    def node(self) -> str:
        """Id of the node that it lives on; "" until it is up."""
        return self.place.node


class ActorPool:
    """All actors of a run, created at once, so that they import meanwhile; `begin` waits for them.

    Attributes:
        plan: what there is, which is less than was planned once there is no room, and more once nodes joined.
        hosts: client actors, group by group, as `plan` has them.
        server: the server's.
        here: id of the node that this process is on; "" through Ray Client, and until `begin`.
        far: whether this process reaches Ray through Ray Client, which has no streams.
        calls: how to ask them.
        startup: how long they took to come up when the run began; None: not begun, or something died meanwhile.
    """

    def __init__(
        self,
        plan: Plan,
        pack: bool = False,
        head: bool = True,
        replan: Callable[[ClusterResources], Plan] | None = None,
        notify: Callable[[str], None] = lambda text: None,
        participants: int | None = None,
    ) -> None:
        """Ask for them all.

        pack: fill one node after another.
        head: whether client actors may live on the head node.
        replan: what to have when nodes joined; None: what `plan` says.
        note: tells the user.
        participants: per round; as many actors test clients that never had a turn. None: all do.
        """
        self.plan, self.pack, self.head, self.replan = plan, pack, head, replan
        self.notify, self.participants = notify, participants
        self.via_ray_client = bool(ray.util.client.ray.is_connected())
        self.driver_node = ""
        self.calls = ActorCalls(self._name, notify, self._detail)
        self.startup: Startup | None = None
        self._begun = False
        self._what: Sequence[Any] = ()  # references to the world and the images
        self._known = {node.id for node in nodes(head)}  # when it was last looked; later ones have joined
        self._looked_s = perf_counter()  # when it was last looked for nodes that joined
        self.starting: list[tuple[int, Worker, Any]] = []  # (group, member, its answer), started on such nodes
        self.clients: list[Worker] = []
        for group, placed in zip(self.plan.groups, self._room(), strict=True):
            self.clients += [self._new_client(group, *placed[i : i + 1]) for i in range(group.actors)]
        self.server = self._new_server()
        for worker in [*self.initial_workers, self.server]:
            worker.actor.preload.remote()

    @property
    def everyone(self) -> list[Worker]:
        """The hosts, then the server."""
        return [*self.clients, self.server]

    @property
    def initial_workers(self) -> list[Worker]:
        """Hosts that have work from the start: all, but where clients are pinned, as many as test before round 1."""
        found: list[Worker] = []
        base = 0
        for group in self.plan.groups:
            some = min(group.actors, self.participants or group.actors) if group.pinned else group.actors
            found += self.clients[base : base + some]
            base += group.actors
        return found

    def default_owner(self) -> dict[ClientId, Worker]:
        """Where each client goes that nobody holds yet: they are dealt out in their group."""
        found: dict[ClientId, Worker] = {}
        base = 0
        for group in self.plan.groups:
            found |= {k: self.clients[base + i % group.actors] for i, k in enumerate(group.clients)}
            base += group.actors
        return found

    def begin(self, spec: Any, images: Any) -> None:
        """Wait until all are up, and make each as it is before round 1. Both are references.

        Raises:
            LostError: one died meanwhile.
            RunError: no more came up for `START_TIMEOUT_S`.
        """
        self._what = spec, images
        shares = [group.gpus_per_actor for group in self.plan.groups for _ in range(group.actors)]
        begun = [m.actor.setup.remote(self._what, share) for m, share in zip(self.clients, shares, strict=True)]
        begun.append(self.server.actor.setup.remote(spec))
        first, self._begun = not self._begun, True
        up_s = self._await(begun)
        for worker, found in zip(self.everyone, self.calls.get(begun, "starting"), strict=True):
            worker.place, worker.usage, worker.pending_clients = found, None, []
        if first:
            self.startup = Startup.of([m.asked_s for m in self.clients], up_s[:-1])
            self._report_startup(self.startup)
        self.driver_node = "" if self.via_ray_client else str(ray.get_runtime_context().get_node_id())
        self.calls.get([worker.actor.ready.remote() for worker in self.initial_workers], "starting")

    def replace_dead(self) -> list[str]:
        """New actors for those that do not answer, where there is room, until all that there is room for are up.

        Returns what a user should know, in sentences.
        """
        notes = self._replace_dead()
        began = perf_counter()
        while not self._up() and perf_counter() - began < START_TIMEOUT_S:
            # It takes Ray a while to see that a node is gone, and with it the room for an actor.
            if any(len(placed) < group.actors for group, placed in zip(self.plan.groups, self._room(), strict=True)):
                notes += self._replace_dead()
        return notes

    def add_new_actors(self) -> None:
        """Let actors on nodes that joined take part from now on; look for such nodes now and then."""
        for new in list(self.starting):
            group, worker, answer = new
            if not ray.wait([answer], timeout=0)[0]:
                continue
            self.starting.remove(new)
            if answered(answer):
                self._add_actor(group, worker)
        if self.replan is None or perf_counter() - self._looked_s < LOOK_FOR_NODES_S:
            return
        self._looked_s = perf_counter()
        self.calls.wait_for_gcs("looking for nodes that joined")
        found = nodes(self.head)
        more = [node for node in found if node.id not in self._known]
        self._known = {node.id for node in found}
        if more:
            self._start_on_new_nodes(found, more)

    def close(self) -> None:
        """End them all, and let go of what they were given; safe to call twice."""
        if ray.is_initialized() and gcs_answers():  # else Ray waits for a minute
            for worker in [*self.everyone, *(new for _, new, _ in self.starting)]:
                ray.kill(worker.actor)
        self.starting, self._what = [], ()

    def _new_client(self, group: ActorGroup, seat: Node | None = None) -> Worker:
        """An actor on this node; without one, where Ray finds room. Others may have taken the room meanwhile, so a seat
        is a wish, unless the head node is to be kept free."""
        strategy: Any = "SPREAD" if seat is None else NodeAffinitySchedulingStrategy(seat.id, soft=self.head)
        options = ray.remote(ClientActor).options(
            num_cpus=group.cpus_per_actor, num_gpus=group.gpus_per_actor, scheduling_strategy=strategy
        )
        asked_s = perf_counter()
        return Worker(options.remote(), asked_s)

    def _new_server(self) -> Worker:
        # The server works while the clients wait, so it takes no CPU away from them.
        return Worker(ray.remote(ServerActor).options(num_cpus=0).remote())

    def _name(self, actor_id: str) -> str | None:
        for i, worker in enumerate(self.everyone):
            if worker.actor._actor_id.hex() == actor_id:
                return "the server actor" if worker is self.server else f"client actor {i + 1} of {len(self.clients)}"
        return None

    def _detail(self, actor_id: str) -> str:
        worker = next((m for m in self.everyone if m.actor._actor_id.hex() == actor_id), None)
        if worker is None:
            return ""
        clients = ", ".join(map(str, worker.pending_clients[:5])) + (", ..." if len(worker.pending_clients) > 5 else "")
        where = f"pid {worker.place.pid} on {worker.place.machine}"
        return f" ({where}{f', at client {clients}' if clients else ''})"

    def _room(self) -> list[list[Node]]:
        self.calls.wait_for_gcs("placing actors")
        return place_actors(self.plan.groups, nodes(self.head), self.pack)

    def _await(self, begun: Sequence[Any]) -> list[float]:
        """Until all are up; says so when it takes long. Returns perf_counter() when each had answered."""
        began = latest = perf_counter()
        reported = False
        up_s: dict[Any, float] = {}
        left = list(begun)
        while left:
            self.calls.wait_for_gcs("starting")
            self.calls.translated(partial(ray.wait, left, num_returns=1, timeout=LOOK_S), "starting")
            # All that answered by now, so that a thousand actors are not a thousand looks at a thousand.
            ready, left = self.calls.translated(partial(ray.wait, left, num_returns=len(left), timeout=0), "starting")
            if ready:
                self.calls.get(ready, "starting")  # an error is an answer, too
                latest = perf_counter()
                up_s |= dict.fromkeys(ready, latest)
            if left and perf_counter() - latest >= START_TIMEOUT_S:
                raise RunError(
                    f"starting: no more actors came up within {START_TIMEOUT_S:.0f} s; on a cluster `ray status` shows "
                    "what they wait for"
                )
            if left and not reported and perf_counter() - began >= SLOW_START_S:
                reported = True
                self.notify(
                    f"{len(up_s)} of {len(begun)} actors are up; the others are starting, or wait for CPUs or GPUs in "
                    f"use (on a cluster `ray status` shows it; the run gives up if none comes up for "
                    f"{START_TIMEOUT_S:.0f} s)"
                )
        return [up_s[answer] for answer in begun]

    def _report_startup(self, found: Startup) -> None:
        if found.actors >= MANY_ACTORS:
            each = f"{found.per_actor_s:.2g} s per actor"
            self.notify(f"{found.actors} client actors were up after {found.seconds:.3g} s ({each})")

    def _replace_dead(self) -> list[str]:
        """New actors for those that do not answer, where there is room; a group that had more goes on with fewer."""
        notes = []
        answers = {worker: worker.actor.pid.remote() for worker in self.everyone}
        # Those that are alive may be at work on the round that was cut off: not worth a long wait.
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=ANSWER_S)
        alive = {worker for worker, ref in answers.items() if answered(ref)}
        for worker in [*(m for m in self.everyone if m not in alive), *(m for _, m, _ in self.starting)]:
            ray.kill(worker.actor)  # one that joins may be on a node that is gone; if not, it is asked for again
        if self.server not in alive:
            self.server = self._new_server()
        self.starting = []
        # A node that is to have none of ours has joined, as far as `add_new_actors` is concerned.
        self._known = {worker.node for worker in self.clients if worker in alive}
        clients: list[Worker] = []
        groups: list[ActorGroup] = []
        base = 0
        for group, placed in zip(self.plan.groups, self._room(), strict=True):
            left = [worker for worker in self.clients[base : base + group.actors] if worker in alive]
            base += group.actors
            wanted = max(min(group.actors, len(placed)), len(left), 1)
            taken = Counter(worker.node for worker in left)
            free: list[Node] = []
            for seat in placed:
                if taken[seat.id]:
                    taken[seat.id] -= 1
                else:
                    free.append(seat)
            free = free[: wanted - len(left)]
            self._known |= {seat.id for seat in free}
            clients += left + [self._new_client(group, *free[i : i + 1]) for i in range(wanted - len(left))]
            groups.append(replace(group, actors=wanted))
            if wanted < group.actors:
                notes.append(f"there is room for {wanted} of {group.actors} actors: the run goes on with them")
        self.clients, self.plan = clients, replace(self.plan, groups=tuple(groups))
        return notes

    def _up(self) -> bool:
        """Whether every actor answers, or is known to be dead, within a moment."""
        answers = [worker.actor.pid.remote() for worker in self.everyone]
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=MOMENT_S)
        return len(ready) == len(answers)

    def _start_on_new_nodes(self, found: Sequence[Node], new: Sequence[Node]) -> None:
        """Start what the nodes that joined have room for, of what the plan would be with them."""
        assert self.replan is not None
        try:
            wanted = self.replan(ClusterResources(sum(n.cpus for n in found), sum(n.gpus for n in found), len(found)))
        except ScenarioError:
            return
        coming = Counter(group for group, _, _ in self.starting)
        more = [
            # A pinned group's clients stay where they are, and shares stay what they were.
            replace(has, actors=0 if has.pinned else max(0, wants.actors - has.actors - coming[g]))
            for g, (has, wants) in enumerate(zip(self.plan.groups, wanted.groups, strict=True))
        ]
        for g, placed in enumerate(place_actors(more, new, self.pack)):
            for seat in placed:
                worker = self._new_client(more[g], seat)
                self.starting.append((g, worker, worker.actor.pid.remote()))

    def _add_actor(self, group: int, worker: Worker) -> None:
        """Count an actor that is up among the hosts of this group, unless it has died by now: nothing was on it."""
        groups = list(self.plan.groups)
        try:
            worker.place = ray.get(worker.actor.setup.remote(self._what, groups[group].gpus_per_actor))
        except RayError:
            return
        self.clients.insert(sum(one.actors for one in groups[: group + 1]), worker)
        groups[group] = replace(groups[group], actors=groups[group].actors + 1)
        self.plan = replace(self.plan, groups=tuple(groups))
        self.notify(f"an actor on a node that joined takes part: {len(self.clients)} client actors now")
