"""From a plan to a backend: join or start Ray, seat the actors, say what each node holds."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from raysim.common.results import Tracker
from raysim.engine.backend import Backend
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.policies.placement import (
    ActorGroup,
    ClusterResources,
    Node,
    Plan,
    check_fits,
    make_plan,
    place_actors,
)
from raysim.engine.recovery import Notify
from raysim.launch.check import Checked


def make_backend(
    checked: Checked, plan: Plan | None, cleanup: contextlib.ExitStack, notify: Notify, well: Callable[[], bool]
) -> tuple[Plan, Backend]:
    """The scenario's backend, not yet started, and the plan that it follows. `cleanup` closes it.

    well: whether the run ended well, so that nobody needs Ray's logs of it.
    """
    scenario = checked.loaded.scenario
    backend: Backend
    if scenario.backend == "in_process":
        assert plan is not None
        wanted = any(group.gpus_per_actor for group in plan.groups)
        backend = InProcessBackend("cuda" if wanted and torch.cuda.is_available() else "cpu")
        plan = replace(plan, groups=tuple(replace(group, actors=0) for group in plan.groups))
        for text in plan.notes:
            notify(text)
        cleanup.callback(backend.close)
        return plan, backend
    from raysim.engine.ray import local_cluster, session
    from raysim.engine.ray.backend import RayBackend
    from raysim.engine.ray.pool import ActorPool

    owned = session.connect(plan.cpus if plan else None)
    if owned:
        cleanup.callback(lambda: local_cluster.stop(remove_logs=well()))
    resources = scenario.resources

    def planned(machine: ClusterResources) -> Plan:
        return make_plan(checked.requests, machine, checked.participants)

    if plan is None:
        plan = planned(session.machine(resources.head))
    nodes = session.nodes(resources.head)
    pack = resources.placement == "pack"
    check_fits(plan, nodes, pack)
    for text in (*plan.notes, *(seat.sentence for seat in placement(checked, plan, nodes))):
        notify(text)
    pool = ActorPool(plan, pack, resources.head, None if owned else planned, notify, checked.participants)
    backend = RayBackend(pool)
    cleanup.callback(backend.close)
    return plan, backend


def metrics_of(backend: str) -> Tracker | None:
    """What shows the run to a cluster's Prometheus; a Ray of our own has none."""
    if backend != "ray":
        return None
    from raysim.engine.ray.metrics import RayMetrics
    from raysim.engine.ray.session import attached

    return RayMetrics() if attached() else None


@dataclass(frozen=True)
class Placement:
    """What one of several nodes will hold."""

    node: Node
    actors: int  # client actors
    cpus: float  # that they reserve
    gpus: float
    apart: Mapping[str, int]  # whom an override is for -> its actors here

    @property
    def holds(self) -> str:
        """Such as "4 client actors (2 for cnn1)"."""
        apart = ", ".join(f"{count} for {whom}" for whom, count in self.apart.items())
        return f"{self.actors} client actor{'' if self.actors == 1 else 's'}" + (f" ({apart})" if apart else "")

    @property
    def sentence(self) -> str:
        """For whoever watches the run begin."""
        return f"node {self.node.name}: {self.holds}"


def placement(checked: Checked, plan: Plan, nodes: Sequence[Node]) -> list[Placement]:
    """What each node will hold; empty where there is but one, which holds everything."""
    if len(nodes) < 2:
        return []
    resources = checked.loaded.scenario.resources
    whom = {
        ask.clients: ", ".join(override.models or [f"clients {override.clients}"])
        for ask, override in zip(checked.requests[:-1], resources.overrides, strict=True)
    }
    placed = place_actors(plan.groups, nodes, resources.placement == "pack")
    held: dict[str, list[ActorGroup]] = {node.id: [] for node in nodes}
    for group, found in zip(plan.groups, placed, strict=True):
        for node in found:
            held[node.id].append(group)
    return [
        Placement(
            node,
            len(held[node.id]),
            sum(group.cpus_per_actor for group in held[node.id]),
            sum(group.gpus_per_actor for group in held[node.id]),
            Counter(whom[group.clients] for group in held[node.id] if group.clients in whom),
        )
        for node in nodes
    ]
