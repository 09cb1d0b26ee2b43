"""From a plan to a backend: join or start Ray, seat the actors, say what each node holds."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from raysim.core.results import Tracker
from raysim.engine.backend import Backend
from raysim.engine.inprocess import InProcess
from raysim.engine.leftovers import leftovers
from raysim.engine.placement import Group, Machine, Node, Plan, make_plan, refuse_unseated, seats
from raysim.engine.survival import Note
from raysim.launch.check import Checked


def make_backend(
    checked: Checked, plan: Plan | None, cleanup: contextlib.ExitStack, note: Note, well: Callable[[], bool]
) -> tuple[Plan, Backend]:
    """The scenario's backend, not yet started, and the plan that it follows. `cleanup` closes it.

    well: whether the run ended well, so that nobody needs Ray's logs of it.
    """
    scenario = checked.loaded.scenario
    backend: Backend
    if scenario.backend == "in_process":
        assert plan is not None
        wanted = any(group.gpus_per_actor for group in plan.groups)
        backend = InProcess("cuda" if wanted and torch.cuda.is_available() else "cpu")
        plan = replace(plan, groups=tuple(replace(group, actors=0) for group in plan.groups))
        for text in plan.notes:
            note(text)
        cleanup.callback(backend.close)
        return plan, backend
    from raysim.engine import ray_backend, ray_crew, ray_local, ray_session

    owned = ray_session.connect(plan.cpus if plan else None)
    if owned:
        cleanup.callback(lambda: ray_local.stop(remove_logs=well()))
    resources = scenario.resources

    def planned(machine: Machine) -> Plan:
        return make_plan(checked.asks, machine, checked.participants)

    if plan is None:
        plan = planned(ray_session.machine(resources.head))
    nodes = ray_session.nodes(resources.head)
    pack = resources.placement == "pack"
    refuse_unseated(plan, nodes, pack)
    for text in (*plan.notes, *(seat.sentence for seat in seating(checked, plan, nodes))):
        note(text)
    crew = ray_crew.Crew(plan, pack, resources.head, None if owned else planned, note, checked.participants)
    backend = ray_backend.RayBackend(crew)
    cleanup.callback(backend.close)
    for left in leftovers():
        note(left.sentence)
    return plan, backend


def metrics_of(backend: str) -> Tracker | None:
    """What shows the run to a cluster's Prometheus; a Ray of our own has none."""
    if backend != "ray":
        return None
    from raysim.engine import ray_metrics, ray_session

    return ray_metrics.RayMetrics() if ray_session.attached() else None


@dataclass(frozen=True)
class Seating:
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


def seating(checked: Checked, plan: Plan, nodes: Sequence[Node]) -> list[Seating]:
    """What each node will hold; empty where there is but one, which holds everything."""
    if len(nodes) < 2:
        return []
    resources = checked.loaded.scenario.resources
    whom = {
        ask.clients: ", ".join(override.models or [f"clients {override.clients}"])
        for ask, override in zip(checked.asks[:-1], resources.overrides, strict=True)
    }
    seated = seats(plan.groups, nodes, resources.placement == "pack")
    held: dict[str, list[Group]] = {node.id: [] for node in nodes}
    for group, found in zip(plan.groups, seated, strict=True):
        for node in found:
            held[node.id].append(group)
    return [
        Seating(
            node,
            len(held[node.id]),
            sum(group.cpus_per_actor for group in held[node.id]),
            sum(group.gpus_per_actor for group in held[node.id]),
            Counter(whom[group.clients] for group in held[node.id] if group.clients in whom),
        )
        for node in nodes
    ]
