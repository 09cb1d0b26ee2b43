"""The machine or cluster for a run: its resources, whether the run can start on it, and the backend with its actors."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from raysim.common.errors import RunError
from raysim.common.results import Tracker
from raysim.core import accelerator
from raysim.engine.backend import Backend
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.policies.placement import ActorGroup, ClusterResources, Layout, Node, lay_out, place_actors
from raysim.engine.workers.state_files import StateLimits
from raysim.models import MODELS
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


def check_local(scenario: Scenario) -> None:
    """Raise `ScenarioError` if a run of this scenario cannot start in this folder or on this machine."""
    scenario.own_code.activate()  # another scenario's code may have been activated after this one was loaded
    _ = scenario.algorithm  # raises if a user's own file cannot be imported
    has = psutil.virtual_memory().total
    size = bytes_of_models(scenario)
    name = max(size, key=lambda name: size[name])
    if size[name] > has:
        given = scenario.clients.feature_dim
        raise scenario.origin.error(
            ("clients", "models") if given == "auto" else ("clients", "feature_dim"),
            f"{name if given == 'auto' else given} given, but the parameters of one {name} take "
            f"{size[name] / 2**30:.0f} GiB, and this machine has {has / 2**30:.0f} GiB of memory; give "
            f"{'a smaller model' if given == 'auto' else 'a smaller number'}",
        )


def bytes_of_models(scenario: Scenario) -> dict[str, int]:
    """Return the size in bytes of one model of each architecture."""
    size = {}
    for name in scenario.task.architectures:
        # raysim's own models are built on the meta device, where tensors have no memory. A custom model may read its
        # weights from a file, which does not work there.
        with torch.random.fork_rng(devices=[]), torch.device("meta" if name in MODELS else "cpu"):
            size[name] = sum(p.nbytes for p in scenario.build(name).parameters())
    return size


_in_process = threading.Lock()
"""Lock of the run that does all work in this process. Another such run in a thread would change its result."""


@contextlib.contextmanager
def only_in_process(backend: str) -> Iterator[None]:
    """Raise `RunError` if this run and another active run would both do all their work in this process."""
    if backend != "in_process":
        yield
        return
    if not _in_process.acquire(blocking=False):
        raise RunError(
            "another run with backend: in_process is active in this process, and both would draw from torch's "
            "global random generators; set backend: ray, or start the runs in separate processes"
        )
    try:
        yield
    finally:
        _in_process.release()


def device_in_process(layout: Layout) -> torch.device:
    """Return the device for training in this process."""
    wanted = any(group.gpus_per_actor for group in layout.groups)
    return (accelerator.available() if wanted else None) or torch.device("cpu")


def make_backend(
    scenario: Scenario,
    plan: Plan,
    cleanup: contextlib.ExitStack,
    succeeded: Callable[[], bool],
    folder: Path | None = None,
) -> Backend:
    """Create the scenario's backend without starting it. `cleanup` will close it, and stop a Ray that is started here.

    succeeded: returns whether the run has all its rounds when `cleanup` runs; Ray's logs are then removed. folder: the
    run folder; its disk holds clients' states that do not fit into memory.
    """
    layout, resources = plan.layout, scenario.resources
    assert layout is not None
    if scenario.backend == "in_process":
        in_process = InProcessBackend(device_in_process(layout), state_limits(scenario, folder))
        cleanup.callback(in_process.close)
        for text in layout.notes:
            logger.info(text)
        return in_process
    from raysim.engine.ray import local_cluster, session
    from raysim.engine.ray.backend import RayBackend
    from raysim.engine.ray.pool import ActorPool

    started = session.connect(layout.cpus)
    if started:
        cleanup.callback(lambda: local_cluster.stop(remove_logs=succeeded()))
    elif local_cluster.is_running():
        raise RunError(
            "another run in this process has started the Ray that is running here, and stops it when it ends; start "
            "the runs in separate processes, or run `ray start --head` and set RAY_ADDRESS=auto for both"
        )
    nodes = session.nodes(resources.head)
    for text in (*layout.notes, *(one.sentence for one in placement(scenario, layout, nodes))):
        logger.info(text)

    limits = state_limits(scenario, folder)
    pool = ActorPool(layout, resources.placement, resources.head, scenario.participants, limits)
    backend = RayBackend(pool)
    cleanup.callback(backend.close)
    return backend


def state_limits(scenario: Scenario, folder: Path | None = None) -> StateLimits:
    """Return the memory limit for clients' states, and the folder for larger states. folder: the run folder."""
    given = scenario.resources.memory_gb
    return StateLimits(None if given == "auto" else given, None if folder is None else str(folder))


def metrics_tracker(backend: str) -> Tracker | None:
    """Return the tracker for a cluster's Prometheus; None if the run starts its own Ray or runs in process."""
    if backend != "ray":
        return None
    from raysim.engine.ray.metrics import RayMetrics
    from raysim.engine.ray.session import attached

    return RayMetrics() if attached() else None


@dataclass(frozen=True)
class Placement:
    """The actors that a node of a cluster will have."""

    node: Node
    actors: int  # number of client actors
    cpus: float  # number of CPUs that the actors reserve
    gpus: float
    overrides: Mapping[str, int]  # name of an override, such as an architecture -> its number of actors on this node

    @property
    def holds(self) -> str:
        """The actors in words, for example "4 client actors (2 for cnn1)"."""
        some = ", ".join(f"{count} for {target}" for target, count in self.overrides.items())
        return plural(self.actors, "client actor") + (f" ({some})" if some else "")

    @property
    def sentence(self) -> str:
        """The sentence about this node that a run logs at its start."""
        return f"node {self.node.name}: {self.holds}"


def placement(scenario: Scenario, layout: Layout, nodes: Sequence[Node]) -> list[Placement]:
    """Return the actors of each node; empty if there is only one node, because it has all actors."""
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
    return [
        Placement(
            node,
            len(groups[node.id]),
            sum(group.cpus_per_actor for group in groups[node.id]),
            sum(group.gpus_per_actor for group in groups[node.id]),
            Counter(targets[group.clients] for group in groups[node.id] if group.clients in targets),
        )
        for node in nodes
    ]
