"""The actors of a run. They start on nodes with enough room, and are replaced when they die."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.common.errors import RunError
from raysim.core.algorithm import ClientId
from raysim.engine.policies.placement import ActorGroup, Layout, Node, NodeOrder, check_fits, place_actors
from raysim.engine.ray.actors import ClientActor, Location, ServerActor
from raysim.engine.ray.calls import POLL_S, ActorCalls, succeeded
from raysim.engine.ray.session import HEAD, growing, head_id, nodes
from raysim.engine.records import MemoryReport
from raysim.engine.workers.state_files import AUTO, Handles, StateLimits

logger = logging.getLogger(__name__)

RETRY_S = 2.0
"""Seconds between checks whether actors that have not started still fit."""

RECOVERY_DEADLINE_S = 10.0
"""After an actor died, a busy actor must answer within this number of seconds, or the run replaces it, too."""

START_TIMEOUT_S = 900.0
"""Maximum seconds to wait for the next actor to start, perhaps on a node that an autoscaler adds. All actors together
may take longer."""

SLOW_START_S = 30.0
"""If some actors have not started after this number of seconds, the user is warned."""


@dataclass(eq=False)
class ActorRecord:
    """The driver's record of a client actor or of the server actor: its handle, location and memory."""

    actor: Any  # Ray's handle
    group: int = 0  # position of the actor's group in the layout
    location: Location = Location("", "", 0)  # empty until the actor has started
    usage: MemoryReport | None = None  # last measured memory
    pending_clients: list[ClientId] = field(default_factory=list)  # clients of this round whose results are missing

    @property
    def node(self) -> str:
        """Id of the actor's node; "" until the actor has started."""
        return self.location.node


class ActorPool:
    """All actors of a run. They begin to start and to import torch at once; `begin` waits for them.

    Attributes:
        layout: the current actors: fewer than planned if some no longer fit.
        clients: the client actors, group by group as in `layout`.
        server: the server's actor.
        growing: whether the cluster has an autoscaler, which adds nodes for actors that fit on no present node.
        driver_node: id of the node of this process; "" until `begin`.
        calls: waits for the actors' answers.
        startup_s: seconds until all actors had started when the run began; None before.
    """

    def __init__(
        self,
        layout: Layout,
        order: NodeOrder = "spread",
        head: bool = True,
        participants: int | None = None,
        limits: StateLimits = AUTO,
    ) -> None:
        """Request all actors from Ray. Raises `ScenarioError` if an actor fits on no node.

        order: as in `resources.placement`.
        head: whether client actors may run on the head node.
        participants: clients per round: with pinned clients, only so many actors test untrained clients. None: all.
        limits: where each node may store the clients' states.
        """
        self.layout, self.order, self.head, self.growing = layout, order, head, growing()
        self.participants, self.limits = participants, limits
        self.driver_node = ""
        self.calls = ActorCalls(self._name, self._detail)
        self.requested_s = perf_counter()
        self.startup_s: float | None = None
        self._inputs: Sequence[Any] = ()  # references to the plan and the samples
        if not self.growing:
            check_fits(layout, nodes(head), order)
        self.clients: list[ActorRecord] = []
        for g, placed in enumerate(self._place()):
            self.clients += [self._new_client(g, *placed[i : i + 1]) for i in range(self.layout.groups[g].actors)]
        self.server = self._new_server()
        for worker in [*self.initial_workers, self.server]:
            worker.actor.preload.remote()

    @property
    def workers(self) -> list[ActorRecord]:
        """The client actors and, last, the server actor."""
        return [*self.clients, self.server]

    @property
    def initial_workers(self) -> list[ActorRecord]:
        """Client actors that work before round 1: all, or, with pinned clients, one per participant of a round."""
        chosen: list[ActorRecord] = []
        for group, workers in self._groups():
            chosen += workers[: self.participants] if group.pinned else workers
        return chosen

    def default_owner(self, ids: Iterable[ClientId], initial: bool = False) -> dict[ClientId, ActorRecord]:
        """Return the actor of each client that has not trained yet: a group's clients get its actors in turn.

        initial: only over those among `initial_workers`.
        """
        groups = list(self._groups())
        worker_of = {}
        for k in ids:
            group, workers = next(one for one in groups if k in one[0].place)
            if initial and group.pinned:
                workers = workers[: self.participants]
            worker_of[k] = workers[group.place[k] % len(workers)]
        return worker_of

    def begin(self, plan: Any, raw: Any) -> None:
        """Wait until all actors have started, and reset each of them to its state before round 1.

        plan, raw: references to the Plan and the samples.

        Raises:
            LostError: an actor died meanwhile.
            RunError: no further actor started within `START_TIMEOUT_S`.
        """
        first, self._inputs = not self._inputs, (plan, raw)
        shares = [group.gpus_per_actor for group in self.layout.groups for _ in range(group.actors)]
        setups = [
            worker.actor.setup.remote(self._inputs, share, self.limits)
            for worker, share in zip(self.clients, shares, strict=True)
        ]
        setups.append(self.server.actor.setup.remote(plan))
        wait_until_started(self.calls, setups)
        if first:
            self.startup_s = perf_counter() - self.requested_s
        for worker, location in zip(self.workers, self.calls.get(setups, "starting"), strict=True):
            worker.location, worker.usage, worker.pending_clients = location, None, []
        joined = [worker.actor.join.remote(self._files(worker)) for worker in self.clients]
        for worker, location in zip(self.clients, self.calls.get(joined, "starting"), strict=True):
            worker.location = location
        self.driver_node = str(ray.get_runtime_context().get_node_id())
        self.calls.get([worker.actor.ready.remote() for worker in self.initial_workers], "starting")

    def replace_dead(self) -> None:
        """Replace actors that do not answer, as far as new actors fit, and wait until all have started."""
        self._replace_dead()
        began = perf_counter()
        while not self.growing and not self._all_answer() and perf_counter() - began < START_TIMEOUT_S:
            # Ray notices the loss of a node only after a while. Only then does it know that fewer actors fit.
            if any(len(placed) < group.actors for group, placed in zip(self.layout.groups, self._place(), strict=True)):
                self._replace_dead()

    def close(self) -> None:
        """End all actors and release their inputs. Can be called twice."""
        if ray.is_initialized():
            for worker in self.workers:
                ray.kill(worker.actor)
        self._inputs = ()

    def _groups(self) -> list[tuple[ActorGroup, list[ActorRecord]]]:
        """Return the groups of the layout, each with its client actors."""
        return [(group, [one for one in self.clients if one.group == g]) for g, group in enumerate(self.layout.groups)]

    def _files(self, worker: ActorRecord) -> Handles:
        """Return the state files that a group's actors on a node share, so that clients move without a copy.

        Groups share no files, since a state may have another size on another device: on a GPU, cuDNN keeps all weights
        of a recurrent layer in one block.
        """
        near = (one for one in self.clients if one.group == worker.group and one.node == worker.node)
        return next(near, worker).location.files

    def _new_client(self, g: int, node: Node | None = None) -> ActorRecord:
        """Start a client actor of group `g` on `node`; None: Ray chooses the node.

        Another program may have taken the resources meanwhile, so the node is a preference, unless the head node must
        have no clients. On a cluster with an autoscaler, Ray chooses: an actor that prefers a node without free
        resources would wait for it, and not request another node.
        """
        group, chosen = self.layout.groups[g], {}
        if node is not None and not self.growing:
            chosen["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node.id, soft=self.head)
        else:
            chosen["scheduling_strategy"] = "DEFAULT" if self.order == "pack" else "SPREAD"
            if not self.head:
                chosen["label_selector"] = {"ray.io/node-id": f"!{head_id()}"}
        options = ray.remote(ClientActor).options(
            num_cpus=group.cpus_per_actor, num_gpus=group.gpus_per_actor, **chosen
        )
        return ActorRecord(options.remote(), g)

    def _new_server(self) -> ActorRecord:
        # The server takes no CPU from the clients, because it works while they wait. Ray would place an actor without
        # any resource on a random node, perhaps with another kind of CPU, so the actor requests a resource that only
        # the head node has.
        return ActorRecord(ray.remote(ServerActor).options(num_cpus=0, resources={HEAD: 0.001}).remote())

    def _worker(self, actor_id: str) -> ActorRecord | None:
        return next((one for one in self.workers if one.actor._actor_id.hex() == actor_id), None)

    def _name(self, actor_id: str) -> str | None:
        worker = self._worker(actor_id)
        if worker is None:
            return None
        if worker is self.server:
            return "the server actor"
        return f"client actor {self.clients.index(worker) + 1} of {len(self.clients)}"

    def _detail(self, actor_id: str) -> str:
        worker = self._worker(actor_id)
        if worker is None:
            return ""
        clients = ", ".join(map(str, worker.pending_clients[:5])) + (", ..." if len(worker.pending_clients) > 5 else "")
        process = f"pid {worker.location.pid} on {worker.location.address}"
        return f" ({process}{f', at client {clients}' if clients else ''})"

    def _place(self) -> list[list[Node]]:
        return place_actors(self.layout.groups, nodes(self.head), self.order)

    def _replace_dead(self) -> None:
        """Replace actors that do not answer. A group shrinks if its actors do not fit and no node will be added."""
        answers = {worker: worker.actor.pid.remote() for worker in self.workers}
        # Living actors may be busy with the interrupted round. That round is lost, so it is not worth a long wait.
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=RECOVERY_DEADLINE_S)
        alive = {worker for worker, ref in answers.items() if succeeded(ref)}
        for worker in self.workers:
            if worker not in alive:
                ray.kill(worker.actor)
        if self.server not in alive:
            self.server = self._new_server()
        clients: list[ActorRecord] = []
        groups: list[ActorGroup] = []
        for g, ((group, workers), placed) in enumerate(zip(self._groups(), self._place(), strict=True)):
            left = [worker for worker in workers if worker in alive]
            count = group.actors if self.growing else max(len(placed), len(left), 1)
            taken = Counter(worker.node for worker in left)
            free: list[Node] = []
            for node in placed:
                if taken[node.id]:
                    taken[node.id] -= 1
                else:
                    free.append(node)
            free = free[: count - len(left)]
            clients += left + [self._new_client(g, *free[i : i + 1]) for i in range(count - len(left))]
            groups.append(replace(group, actors=count))
            if count < group.actors:
                logger.warning(
                    f"only {count} of {group.actors} actors fit on the nodes that are available now; the run "
                    "continues with these"
                )
        self.clients, self.layout = clients, replace(self.layout, groups=tuple(groups))

    def _all_answer(self) -> bool:
        """Return whether every actor answers, or is known to be dead, within `RETRY_S`."""
        answers = [worker.actor.pid.remote() for worker in self.workers]
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=RETRY_S)
        return len(ready) == len(answers)


def wait_until_started(calls: ActorCalls, setups: Sequence[Any]) -> None:
    """Wait for every actor's first answer, and warn if that takes long.

    Raises `LostError` if an actor died, `RunError` if no further actor started within `START_TIMEOUT_S`.
    """
    began = latest = perf_counter()
    warned = False
    left = list(setups)
    while left:
        with calls.translate_errors("starting"):
            ray.wait(left, num_returns=1, timeout=POLL_S)
            # All present answers are taken at once. With a thousand actors, one wait per answer would take quadratic
            # time.
            ready, left = ray.wait(left, num_returns=len(left), timeout=0)
        if ready:
            calls.get(ready, "starting")  # raises the error of an actor whose setup failed
            latest = perf_counter()
        started = f"{len(setups) - len(left)} of {len(setups)}"
        if left and perf_counter() - latest >= START_TIMEOUT_S:
            raise RunError(
                f"starting: no further actor started within {START_TIMEOUT_S:.0f} s ({started} have); on a "
                "cluster, run `ray status` to see which resources are missing"
            )
        if left and not warned and perf_counter() - began >= SLOW_START_S:
            warned = True
            logger.warning(
                f"{started} actors have started; the others are starting, or wait for CPUs, GPUs or nodes (on a "
                "cluster, `ray status` shows which are in use). The run ends if no further actor starts for "
                f"{START_TIMEOUT_S:.0f} s"
            )
