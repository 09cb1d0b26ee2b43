"""The machine or cluster for a run: its resources, whether the run can start on it, and the backend with its actors."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from raysim.common.errors import RunError
from raysim.common.results import Tracker
from raysim.core import accelerator
from raysim.engine.backend import Backend
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.policies.placement import ActorGroup, ClusterResources, Layout, Node, lay_out, place_actors
from raysim.engine.workers.state_files import StateLimits
from raysim.results.units import plural
from raysim.runs.signals import sigterm_kept
from raysim.scenario.scenario import Scenario

logger = logging.getLogger(__name__)


def find_machine(scenario: Scenario) -> ClusterResources:
    """Return the resources for a run's actors: those of its cluster or, without one, of this machine.

    Raises `ScenarioError` when the cluster does not answer.
    """
    if not attach(scenario):
        kind = accelerator.available()
        # Actors can only use GPUs that Ray counts, and a Ray that raysim starts counts only CUDA GPUs.
        usable = kind is not None and (scenario.backend == "in_process" or kind.type == "cuda")
        gpus = accelerator.count() if usable else 0
        return ClusterResources(float(os.cpu_count() or 1), float(gpus), oversubscribable=True)
    from raysim.engine.ray import session

    return session.machine(scenario.resources.head)


def attach(scenario: Scenario) -> bool:
    """Connect to the Ray that RAY_ADDRESS names or this process has started; return False if there is none.

    Raises `ScenarioError` when the cluster does not answer.
    """
    ray = sys.modules.get("ray")
    if scenario.backend != "ray":
        return False
    if not os.environ.get("RAY_ADDRESS") and (ray is None or not ray.is_initialized()):
        return False
    from raysim.engine.ray import session

    with sigterm_kept():
        session.connect()
    return True


def layout_of(scenario: Scenario, machine: ClusterResources | None = None) -> Layout:
    """Plan the actors of a run. machine: the available resources; default: the result of `find_machine`.

    Raises `ScenarioError` if the resources do not suffice, or clients would train in float16 without a GPU.
    """
    layout = lay_out(scenario.requests, machine or find_machine(scenario), scenario.participants)
    if scenario.training.precision == "float16" and not all(group.gpus_per_actor for group in layout.groups):
        # Measured: a step of CNN-1 to CNN-5 then takes 65 to 125 times as long as in float32.
        raise scenario.origin.error(
            ("training", "precision"),
            "float16 given, but some or all clients train on the CPU, where it takes many times as long as float32; "
            "use bfloat16 or float32, or only actors with GPUs",
        )
    return layout


_in_process = threading.Lock()
"""Lock of the run that does all work in this process. Another such run in a thread would change its result."""


@contextlib.contextmanager
def only_in_process(backend: str) -> Iterator[None]:
    """Raise `RunError` if this run and another active run would both do all their work in this process."""
    if backend == "in_process" and not _in_process.acquire(blocking=False):
        raise RunError(
            "another run with backend: in_process is active in this process, and both would draw from torch's "
            "global random generators; set backend: ray, or start the runs in separate processes"
        )
    try:
        yield
    finally:
        if backend == "in_process":
            _in_process.release()


def make_backend(scenario: Scenario, plan: Plan, cleanup: contextlib.ExitStack, folder: Path) -> Backend:
    """Create the scenario's backend without starting it. `cleanup` will close it, and stop a Ray that is started here.

    If `cleanup` ends without an exception, it removes Ray's logs. folder: the disk of this folder holds clients' states
    that do not fit into memory.
    """
    layout, resources = plan.layout, scenario.resources
    assert layout is not None
    memory_gb = None if resources.memory_gb == "auto" else resources.memory_gb
    limits = StateLimits(memory_gb, str(folder))
    if scenario.backend == "in_process":
        device = accelerator.available() if any(group.gpus_per_actor for group in layout.groups) else None
        in_process = InProcessBackend(device or "cpu", limits)
        cleanup.callback(in_process.close)
        for text in layout.notes:
            logger.info(text)
        return in_process
    from raysim.engine.ray import local_cluster, session
    from raysim.engine.ray.backend import RayBackend
    from raysim.engine.ray.pool import ActorPool

    started = session.connect(layout.cpus)
    if started:
        cleanup.push(lambda failed, *_: local_cluster.stop(remove_logs=failed is None))
    elif local_cluster.is_running():
        raise RunError(
            "another run in this process has started the Ray that is running here, and stops it when it ends; start "
            "the runs in separate processes, or run `ray start --head` and set RAY_ADDRESS=auto for both"
        )
    nodes = session.nodes(resources.head)
    for text in (*layout.notes, *placement(scenario, layout, nodes)):
        logger.info(text)
    pool = ActorPool(layout, resources.placement, resources.head, scenario.participants, limits)
    backend = RayBackend(pool)
    cleanup.callback(backend.close)
    return backend


def metrics_tracker(backend: str) -> Tracker | None:
    """Return the tracker for a cluster's Prometheus; None if the run starts its own Ray or runs in process."""
    if backend != "ray":
        return None
    from raysim.engine.ray.metrics import RayMetrics
    from raysim.engine.ray.session import attached

    return RayMetrics() if attached() else None


def placement(scenario: Scenario, layout: Layout, nodes: Sequence[Node]) -> list[str]:
    """Return a sentence about the actors of each node; none if there is only one node, because it has all actors."""
    if len(nodes) < 2:
        return []
    resources = scenario.resources
    targets = {
        request.clients: ", ".join(override.models or [f"clients {override.clients}"])
        for request, override in zip(scenario.requests[:-1], resources.overrides, strict=True)
    }
    groups: dict[str, list[ActorGroup]] = {node.id: [] for node in nodes}
    placed = place_actors(layout.groups, nodes, resources.placement)
    for group, group_nodes in zip(layout.groups, placed, strict=True):
        for node in group_nodes:
            groups[node.id].append(group)
    sentences = []
    for node in nodes:
        some = Counter(targets[group.clients] for group in groups[node.id] if group.clients in targets)
        of = ", ".join(f"{count} for {target}" for target, count in some.items())
        actors = plural(len(groups[node.id]), "client actor")
        sentences.append(f"node {node.name}: {actors}" + (f" ({of})" if of else ""))
    return sentences
