"""Placement of actors on nodes, and of clients on actors, by pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Literal

from raysim.common.errors import ScenarioError

if TYPE_CHECKING:
    from raysim.core.algorithm import ClientId

Group = tuple["ClientId", ...]
"""Clients that are trained by one call; most groups contain a single client."""

NodeOrder = Literal["spread", "pack"]

ORDERS: Mapping[NodeOrder, Callable[[float, float], tuple[float, float]]] = {
    "spread": lambda gpus, cpus: (-gpus, -cpus),
    "pack": lambda gpus, cpus: (gpus, cpus),
}
"""`resources.placement` -> sort key of a node, from its free GPUs and CPUs. The first node that has enough of both gets
the next actor. To add a placement, add it here and to `NodeOrder`."""

GPU_ACTORS = 4
"""Maximum number of actors per GPU with `auto`: more actors gain little, and each costs a CUDA context."""

MIN_GAIN = 0.02
"""Minimum share of a round's time that moving a client must save, because a move copies the client's state."""


@dataclass(frozen=True)
class ResourceRequest:
    """The resources that a scenario requests for a group of clients."""

    clients: tuple[ClientId, ...]
    actors: int | None  # None: `auto`
    clients_per_actor: int | None  # None: `auto`
    cpus_per_actor: float
    gpus_per_actor: float | None  # None: `auto`
    key: str = "resources"  # the key that errors name


@dataclass(frozen=True)
class ClusterResources:
    """The CPUs, GPUs and nodes that can hold actors."""

    cpus: float
    gpus: float
    nodes: int = 1
    oversubscribable: bool = False  # whether actors may reserve more CPUs than exist, as on a local Ray
    growing: bool = False  # whether an autoscaler may add nodes if actors do not fit on the present nodes

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> ClusterResources:
        """Return the resources of all these nodes together."""
        return cls(sum(node.cpus for node in nodes), sum(node.gpus for node in nodes), len(nodes))


@dataclass(frozen=True)
class Node:
    """One machine of a cluster."""

    name: str
    cpus: float
    gpus: float
    id: str = ""


@dataclass(frozen=True)
class ActorGroup:
    """Actors with equal resources, and the clients that they train."""

    clients: tuple[ClientId, ...]
    actors: int
    cpus_per_actor: float
    gpus_per_actor: float
    pinned: bool  # clients never move to another actor

    @cached_property
    def place(self) -> dict[ClientId, int]:
        """Client -> its position in `clients`."""
        return {k: i for i, k in enumerate(self.clients)}

    @property
    def threads(self) -> int:
        """Intra-op threads of each actor."""
        return max(1, int(self.cpus_per_actor))


@dataclass(frozen=True)
class Layout:
    """All actors of a run."""

    groups: tuple[ActorGroup, ...]
    notes: tuple[str, ...] = ()  # sentences about the layout for the user

    @property
    def num_actors(self) -> int:
        """Number of client actors of all groups."""
        return sum(group.actors for group in self.groups)

    @property
    def cpus(self) -> float:
        """CPUs that all actors reserve together."""
        return sum(group.actors * group.cpus_per_actor for group in self.groups)

    @property
    def gpus(self) -> float:
        """GPUs that all actors reserve together."""
        return sum(group.actors * group.gpus_per_actor for group in self.groups)


def lay_out(requests: Sequence[ResourceRequest], machine: ClusterResources, participants: int | None = None) -> Layout:
    """Return the layout: number and resources of the actors of each group.

    participants: K, the size of a cohort; None: all clients. Raises `ScenarioError` if the layout cannot fit.
    """
    notes: list[str] = []
    groups: list[ActorGroup] = []
    requests = [request for request in requests if request.clients]
    total = sum(len(request.clients) for request in requests)
    if machine.growing and any(request.actors is None and request.clients_per_actor is None for request in requests):
        notes.append(
            "the cluster has an autoscaler, but resources.actors: auto plans with the nodes that are present "
            f"({machine.nodes}); set a number of actors to request nodes for them"
        )
    for request in requests:
        gpus = _gpus_per_actor(request, machine, notes)
        count = len(request.clients)
        # The expected number of participants of this group in a round, rounded up.
        busy = count if participants is None else max(1, math.ceil(participants * count / total))
        actors = _num_actors(request, machine, gpus, len(requests), busy)
        pinned = request.clients_per_actor is not None
        groups.append(ActorGroup(request.clients, actors, request.cpus_per_actor, gpus, pinned))
    sharing = [g for g, request in enumerate(requests) if request.gpus_per_actor is None]
    if machine.gpus and sharing:
        # All actors get the same share of a GPU, because different shares may leave gaps in which no actor fits.
        taken = sum(group.actors * group.gpus_per_actor for g, group in enumerate(groups) if g not in sharing)
        share = share_of_a_gpu(sum(groups[g].actors for g in sharing), machine.gpus - taken)
        for g in sharing:
            groups[g] = replace(groups[g], gpus_per_actor=share)
    layout = Layout(tuple(groups))
    if not machine.growing:
        _refuse_too_large(layout, machine)
        if layout.cpus > machine.cpus + 1e-6:
            notes.append(
                f"the actors need {layout.cpus:g} CPUs, but the machine has {machine.cpus:g}: rounds take longer, but "
                "the results stay the same"
            )
    return replace(layout, notes=tuple(dict.fromkeys(notes)))


def place_actors(groups: Sequence[ActorGroup], nodes: Sequence[Node], order: NodeOrder = "spread") -> list[list[Node]]:
    """Return the node for each actor of each group. The largest actors are placed first.

    order: as in `resources.placement`. A group's list is shorter than its `actors` if not all fit.
    """
    cpus = [node.cpus for node in nodes]
    gpus = [[1.0] * int(node.gpus) for node in nodes]  # the free share of each GPU
    placed: list[list[Node]] = [[] for _ in groups]
    for g in sorted(range(len(groups)), key=lambda g: (-groups[g].gpus_per_actor, -groups[g].cpus_per_actor, g)):
        group = groups[g]
        for _ in range(group.actors):
            for i in sorted(range(len(nodes)), key=lambda i: (*ORDERS[order](sum(gpus[i]), cpus[i]), i)):
                taken = _gpus_taken(gpus[i], group.gpus_per_actor)
                if cpus[i] + 1e-6 < group.cpus_per_actor or taken is None:
                    continue
                cpus[i] -= group.cpus_per_actor
                gpus[i] = taken
                placed[g].append(nodes[i])
                break
    return placed


def check_fits(layout: Layout, nodes: Sequence[Node], order: NodeOrder = "spread") -> None:
    """Raise `ScenarioError` if an actor fits on no node, although the cluster as a whole has enough resources.

    order: as in `resources.placement`.
    """
    for group, placed in zip(layout.groups, place_actors(layout.groups, nodes, order), strict=True):
        if len(placed) < group.actors:
            offers = ", ".join(f"{node.name} ({node.cpus:g} CPU, {node.gpus:g} GPU)" for node in nodes)
            raise ScenarioError(
                f"resources: only {len(placed)} of {group.actors} actors ({group.cpus_per_actor:g} CPU and "
                f"{group.gpus_per_actor:g} GPU each) fit on the nodes: {offers or 'no node is free'}; request fewer "
                "actors, or less CPU or GPU per actor"
            )


def _gpus_taken(left: Sequence[float], share: float) -> list[float] | None:
    """Return the free shares of a node's GPUs after placing an actor that needs `share`: whole GPUs, or part of one.

    None if the share does not fit: 0.4 does not fit on two GPUs with 0.2 free each.
    """
    after = list(left)
    for _ in range(max(1, int(share)) if share else 0):
        piece = min(share, 1.0)
        # Choose the fullest GPU with enough room, so that other GPUs stay free.
        i = min((i for i, free in enumerate(after) if free + 1e-6 >= piece), key=lambda i: after[i], default=None)
        if i is None:
            return None
        after[i] -= piece
    return after


def assign(
    cohort: Collection[Group],
    cost: Mapping[ClientId, float],
    owner: Mapping[ClientId, int],
    groups: Sequence[ActorGroup],
) -> dict[int, list[Group]]:
    """Return the work lists of a round: actor -> groups of clients that are trained together, the slowest first.

    Each group goes to the actor with the least work so far, but stays with the owner of most of its clients unless
    moving shortens the round. Actors are numbered through all groups. The lists affect only speed, never a result.
    """
    lists: dict[int, list[Group]] = {}
    total = {members: sum(cost[k] for k in members) for members in cohort}
    base = 0
    for group in groups:
        load = dict.fromkeys(range(base, base + group.actors), 0.0)
        least = [(0.0, actor) for actor in load]  # a heap of (load, actor); it also contains outdated loads
        here = sorted((one for one in cohort if one[0] in group.place), key=lambda one: (-total[one], one))
        slack = MIN_GAIN * sum(total[members] for members in here)
        for members in here:
            if group.pinned:
                actor = base + group.place[members[0]] % group.actors
            else:
                while least[0][0] != load[least[0][1]]:
                    heappop(least)
                actor = least[0][1]
                (current, _), *_ = Counter(owner.get(k) for k in members).most_common(1)
                if current in load and load[current] <= load[actor] + slack:
                    actor = current
            load[actor] += total[members]
            heappush(least, (load[actor], actor))
            lists.setdefault(actor, []).append(members)
        base += group.actors
    return lists


def _gpus_per_actor(request: ResourceRequest, machine: ClusterResources, notes: list[str]) -> float:
    if request.gpus_per_actor is not None:
        return request.gpus_per_actor
    if machine.gpus:
        return 1.0 / GPU_ACTORS
    hint = "; to use GPUs of nodes that the autoscaler adds, set gpus_per_actor" if machine.growing else ""
    notes.append(f"no GPU found: clients train on the CPU (resources.gpus_per_actor: auto){hint}")
    return 0.0


def _num_actors(request: ResourceRequest, machine: ClusterResources, gpus: float, groups: int, busy: int) -> int:
    """Return the requested number of actors of a group or, with `auto`, the number that fits into its share.

    gpus: GPUs of each actor. groups: number of groups, which share the machine equally. busy: the most actors that have
    work in a round. Raises `ScenarioError` if the scenario requests too few actors for its clients per actor.
    """
    count = len(request.clients)
    if request.clients_per_actor is not None:
        needed = math.ceil(count / request.clients_per_actor)
        if request.actors is not None and request.actors < needed:
            raise ScenarioError(
                f"{request.key}.actors: {request.actors} given, but {count} clients with "
                f"clients_per_actor={request.clients_per_actor} need {needed} actors; set {needed} or more, or auto"
            )
        return min(request.actors or needed, count)
    if request.actors is not None:
        return min(request.actors, count)
    by_cpu = min(machine.cpus / request.cpus_per_actor / groups, 1e9)
    by_gpu = machine.gpus / gpus / groups if gpus else math.inf
    return max(1, min(int(by_cpu + 1e-9), int(min(by_gpu + 1e-9, 1e9)), busy))


def _refuse_too_large(layout: Layout, machine: ClusterResources) -> None:
    """Raise `ScenarioError` if the actors need more GPUs, or on a cluster more CPUs, than exist."""
    too_many_cpus = layout.cpus > machine.cpus + 1e-6 and not machine.oversubscribable
    if too_many_cpus or layout.gpus > machine.gpus + 1e-6:
        each = " + ".join(f"{g.actors} x ({g.cpus_per_actor:g} CPU, {g.gpus_per_actor:g} GPU)" for g in layout.groups)
        raise ScenarioError(
            f"resources: the actors need {layout.cpus:g} CPUs and {layout.gpus:g} GPUs ({each}), but only "
            f"{machine.cpus:g} CPUs and {machine.gpus:g} GPUs are available; request fewer actors, or less CPU or GPU "
            "per actor"
        )


def share_of_a_gpu(actors: int, gpus: float) -> float:
    """Return the largest equal share with which all actors fit. 3 actors on 2 GPUs get 1/2: 2/3 fits once per GPU.

    An actor computes on one GPU, so its share is at most 1. If no GPU is left, the layout will be refused.
    """
    if gpus <= 0:
        return 1.0 / GPU_ACTORS
    per_gpu = max(1, math.ceil(actors / gpus - 1e-9))
    return math.floor(1e4 / per_gpu) / 1e4  # Ray rounds shares to 4 digits
