"""From a plan to a backend: join or start Ray, seat the actors, say what each node holds."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from raysim.core.results import Tracker
from raysim.engine.backend import Backend
from raysim.engine.inprocess import InProcess
from raysim.engine.leftovers import leftovers
from raysim.engine.placement import Machine, Node, Plan, make_plan, refuse_unseated, seats
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
    from raysim.engine import ray_backend

    owned = ray_backend.connect(plan.cpus if plan else None)
    if owned:
        cleanup.callback(lambda: ray_backend.disconnect(remove_logs=well()))
    resources = scenario.resources

    def planned(machine: Machine) -> Plan:
        return make_plan(checked.asks, machine, scenario.clients.participation)

    if plan is None:
        plan = planned(ray_backend.machine(resources.head))
    nodes = ray_backend.nodes(resources.head)
    refuse_unseated(plan, nodes)
    for text in (*plan.notes, *seating(plan, nodes, resources.placement == "pack")):
        note(text)
    backend = ray_backend.RayBackend(
        plan, resources.placement == "pack", resources.head, None if owned else planned, note, checked.participants
    )
    cleanup.callback(backend.close)
    for left in leftovers():
        note(left.sentence)
    return plan, backend


def metrics_of(backend: str) -> Tracker | None:
    """What shows the run to a cluster's Prometheus; a Ray of our own has none."""
    if backend != "ray":
        return None
    from raysim.engine import ray_backend, ray_metrics

    return ray_metrics.RayMetrics() if ray_backend.attached() else None


def seating(plan: Plan, nodes: Sequence[Node], pack: bool) -> list[str]:
    """What each of several nodes will hold."""
    if len(nodes) < 2:
        return []
    seated = Counter(node.id for group in seats(plan.groups, nodes, pack) for node in group)
    return [f"node {node.name}: {seated[node.id]} client actors" for node in nodes]
