"""Where clients live: pure functions from facts to a plan, and from a cohort to work lists. Nothing here acts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raysim.common.errors import ScenarioError

if TYPE_CHECKING:
    from raysim.core.algorithm import ClientId

GPU_ACTORS = 4
"""Actors that `auto` puts on one GPU: more share it with little gain, each costing a CUDA context."""

MOVE_PAYS = 0.02
"""A client moves only if that shortens the round by this share of it: moving costs a copy of its state."""


@dataclass(frozen=True)
class ResourceRequest:
    """What a scenario asks for a group of clients."""

    clients: tuple[ClientId, ...]
    actors: int | None  # None: auto
    clients_per_actor: int | None  # None: auto
    cpus_per_actor: float
    gpus_per_actor: float | None  # None: auto
    key: str = "resources"  # where in the scenario it stands, for errors


@dataclass(frozen=True)
class ClusterResources:
    """What there is to place actors on."""

    cpus: float
    gpus: float
    nodes: int = 1
    oversubscribable: bool = False  # whether actors may reserve more CPUs than there are, as on a run's own Ray

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> ClusterResources:
        """Those of all these nodes."""
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
    """Actors that are alike, and the clients that live on them."""

    clients: tuple[ClientId, ...]
    actors: int
    cpus_per_actor: float
    gpus_per_actor: float
    pinned: bool  # clients stay where they are first placed

    @property
    def threads(self) -> int:
        """Intra-op threads of each actor."""
        return max(1, int(self.cpus_per_actor))


@dataclass(frozen=True)
class Plan:
    """All actors of a run."""

    groups: tuple[ActorGroup, ...]
    notes: tuple[str, ...] = ()  # what the user should know, a sentence each

    @property
    def num_actors(self) -> int:
        """Client actors of all groups."""
        return sum(group.actors for group in self.groups)

    @property
    def cpus(self) -> float:
        """CPUs that all actors reserve."""
        return sum(group.actors * group.cpus_per_actor for group in self.groups)

    @property
    def gpus(self) -> float:
        """GPUs that all actors reserve."""
        return sum(group.actors * group.gpus_per_actor for group in self.groups)


def make_plan(requests: Sequence[ResourceRequest], machine: ClusterResources, participants: int | None = None) -> Plan:
    """Decide how many actors each group gets and what each may use.

    participants: K, of all clients together; None: all of them. Raises `ScenarioError`, one sentence naming
    the key, when it cannot fit.
    """
    notes: list[str] = []
    groups: list[ActorGroup] = []
    shares = [ask for ask in requests if ask.clients]
    total = sum(len(ask.clients) for ask in shares)
    for ask in shares:
        gpus = _gpus_per_actor(ask, machine, notes)
        count = len(ask.clients)
        if ask.clients_per_actor is not None:
            needed = math.ceil(count / ask.clients_per_actor)
            if ask.actors is not None and ask.actors < needed:
                raise ScenarioError(
                    f"{ask.key}.actors: {ask.actors} given, but {count} clients at {ask.clients_per_actor} per actor "
                    f"need {needed}; allowed: {needed} or more, or auto"
                )
            actors = min(ask.actors or needed, count)
        elif ask.actors is not None:
            actors = min(ask.actors, count)
        else:
            by_cpu = min(machine.cpus / ask.cpus_per_actor / len(shares), 1e9)
            by_gpu = machine.gpus / gpus / len(shares) if gpus else math.inf
            # The participants that the group has in a round on average, rounded up.
            busy = count if participants is None else max(1, math.ceil(participants * count / total))
            actors = max(1, min(int(by_cpu + 1e-9), int(min(by_gpu + 1e-9, 1e9)), busy))
        if ask.gpus_per_actor is None and machine.gpus:
            gpus = _round_share(machine.gpus / len(shares) / actors)
        groups.append(ActorGroup(ask.clients, actors, ask.cpus_per_actor, gpus, ask.clients_per_actor is not None))
    plan = Plan(tuple(groups))
    if plan.gpus > machine.gpus + 1e-6:
        raise ScenarioError(
            f"resources.gpus_per_actor: the plan needs {plan.gpus:g} GPUs ({_recipe(groups)}), but there "
            f"{'is' if machine.gpus == 1 else 'are'} {machine.gpus:g}; allowed: fewer actors, smaller shares, 0 or auto"
        )
    if plan.cpus > machine.cpus + 1e-6:
        if not machine.oversubscribable:
            raise ScenarioError(
                f"resources.cpus_per_actor: the plan needs {plan.cpus:g} CPUs ({_recipe(groups)}), but the cluster has "
                f"{machine.cpus:g}; allowed: fewer actors or smaller shares"
            )
        notes.append(
            f"the plan counts {plan.cpus:g} CPUs, the machine has {machine.cpus:g}: rounds take longer, results are "
            "those of a machine with as many"
        )
    return Plan(plan.groups, tuple(dict.fromkeys(notes)))


def place_actors(groups: Sequence[ActorGroup], nodes: Sequence[Node], pack: bool = False) -> list[list[Node]]:
    """Where the actors of each group live: a node for each that has room, largest actors first.

    pack: fill one node after another; else take the one with the most left. A list shorter than `actors` says that not
    all fit.
    """
    cpus = [node.cpus for node in nodes]
    gpus = [[1.0] * int(node.gpus) for node in nodes]  # what is left of each
    found: list[list[Node]] = [[] for _ in groups]
    for g in sorted(range(len(groups)), key=lambda g: (-groups[g].gpus_per_actor, -groups[g].cpus_per_actor, g)):
        group = groups[g]
        for _ in range(group.actors):
            sign = 1 if pack else -1
            for i in sorted(range(len(nodes)), key=lambda i: (sign * sum(gpus[i]), sign * cpus[i], i)):
                taken = _gpus_taken(gpus[i], group.gpus_per_actor)
                if cpus[i] + 1e-6 < group.cpus_per_actor or taken is None:
                    continue
                cpus[i] -= group.cpus_per_actor
                gpus[i] = taken
                found[g].append(nodes[i])
                break
    return found


def check_fits(plan: Plan, nodes: Sequence[Node], pack: bool = False) -> None:
    """Raises `ScenarioError` when the resources are there in all, but no node has enough of them for some actor."""
    for group, placed in zip(plan.groups, place_actors(plan.groups, nodes, pack), strict=True):
        if len(placed) < group.actors:
            offers = ", ".join(f"{node.name} ({node.cpus:g} CPU, {node.gpus:g} GPU)" for node in nodes)
            raise ScenarioError(
                f"resources: {group.actors} actors of {group.cpus_per_actor:g} CPU and {group.gpus_per_actor:g} GPU "
                f"wanted, but only {len(placed)} of them fit on the nodes, which offer {offers or 'nothing'}; allowed: "
                "fewer actors or smaller shares"
            )


def _gpus_taken(left: Sequence[float], share: float) -> list[float] | None:
    """What is left of a node's GPUs after an actor takes its share, which lies on one of them unless it is whole ones.

    None when it does not fit: 0.4 does not fit on two that have 0.2 left each.
    """
    after = list(left)
    for _ in range(max(1, int(share)) if share else 0):
        piece = min(share, 1.0)
        # The fullest that has room, so that others stay whole.
        i = min((i for i, free in enumerate(after) if free + 1e-6 >= piece), key=lambda i: after[i], default=None)
        if i is None:
            return None
        after[i] -= piece
    return after


def assign(
    cohort: Collection[ClientId],
    cost: Mapping[ClientId, float],
    owner: Mapping[ClientId, int],
    groups: Sequence[ActorGroup],
) -> dict[int, list[ClientId]]:
    """Work lists of a round: actor -> clients, longest first.

    Longest job first onto the actor that is free first, but a client stays with its owner unless moving it makes
    the round shorter. Actors are numbered through all groups. Only speed depends on the answer, never a result.
    """
    lists: dict[int, list[ClientId]] = {}
    base = 0
    for group in groups:
        own = set(group.clients)
        members = sorted((k for k in cohort if k in own), key=lambda k: (-cost[k], k))
        load = dict.fromkeys(range(base, base + group.actors), 0.0)
        slack = MOVE_PAYS * sum(cost[k] for k in members)
        for k in members:
            if group.pinned:
                actor = base + group.clients.index(k) % group.actors
            else:
                actor = min(load, key=lambda a: (load[a], a))
                home = owner.get(k)
                if home in load and load[home] <= load[actor] + slack:
                    actor = home
            load[actor] += cost[k]
            lists.setdefault(actor, []).append(k)
        base += group.actors
    return lists


def parse_ranges(text: str, count: int) -> set[int]:
    """`"0-9,12"` -> {0, ..., 9, 12}. Raises `ValueError` when it is not such a list of numbers below `count`."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError('write ranges of ids such as "0-9,12"')
        if last and int(last) < int(first):
            raise ValueError(f"{part.strip()} runs backwards")
        if max(int(first), int(last or first)) >= count:
            raise ValueError(f"there is no client {max(int(first), int(last or first))}")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _gpus_per_actor(ask: ResourceRequest, machine: ClusterResources, notes: list[str]) -> float:
    if ask.gpus_per_actor is None:
        if not machine.gpus:
            notes.append("no GPU found: clients train on the CPU (resources.gpus_per_actor: auto)")
            return 0.0
        return 1.0 / GPU_ACTORS
    if ask.gpus_per_actor and not machine.gpus:
        raise ScenarioError(
            f"{ask.key}.gpus_per_actor: {ask.gpus_per_actor:g} given, but there is no GPU; allowed here: 0 or auto"
        )
    return ask.gpus_per_actor


def _round_share(share: float) -> float:
    # Ray keeps shares to 4 digits; above 1 it takes whole GPUs only.
    return float(int(share)) if share >= 1 else math.floor(share * 1e4) / 1e4


def _recipe(groups: Sequence[ActorGroup]) -> str:
    return " + ".join(f"{g.actors} x ({g.cpus_per_actor:g} CPU, {g.gpus_per_actor:g} GPU)" for g in groups)
