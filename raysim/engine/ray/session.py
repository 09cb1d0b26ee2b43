"""The Ray that a run is on: joined or started, what it has, left again."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import ray
from ray._private import ray_constants

from raysim.common.errors import ScenarioError
from raysim.engine.policies.placement import ClusterResources, Node
from raysim.engine.ray import local_cluster
from raysim.engine.ray.orphans import mark


def connect(local_cpus: float | None = None) -> bool:
    """Join the Ray that is there (RAY_ADDRESS, or one this process has started), else start a local one.

    local_cpus: CPUs that a local Ray should offer; more than the machine has is allowed, they are only counted.
    Returns whether a Ray was started that should be stopped again. Raises `ScenarioError` when RAY_ADDRESS
    does not answer.
    """
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    # Ray's handler in C++ would print a stack at a SIGTERM, abort 3 s later, and leave the default behind at shutdown.
    # Ray read the variable of this name when it was imported; only this process does without the handler.
    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
    # Ray would otherwise warn that this is about to change; our actors without a GPU do not look at it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": True}
    if address:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ScenarioError(
                f"--address or RAY_ADDRESS: {address} given, but no Ray cluster answers there "
                f"({str(error).splitlines()[0]}); without it, a local Ray is started"
            ) from None
        return False
    mark(os.environ)  # whatever this Ray starts says whose it is, should this process die
    cpus = None if local_cpus is None else max(int(np.ceil(local_cpus)), os.cpu_count() or 1)
    local_cluster.start(num_cpus=cpus, **quiet)
    return True


def nodes(head: bool = True) -> list[Node]:
    """The connected cluster's living nodes, with all that they offer. head: with the head node."""
    return [
        Node(
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
            node["NodeID"],
        )
        for node in ray.nodes()
        if node["Alive"] and (head or "node:__internal_head__" not in node["Resources"])
    ]


def machine(head: bool = True) -> ClusterResources:
    """What the connected cluster has. head: with the head node."""
    found = nodes(head)
    return ClusterResources(sum(node.cpus for node in found), sum(node.gpus for node in found), len(found))


def attached() -> bool:
    """Whether the Ray that is connected was there before this process."""
    return bool(os.environ.get("RAY_ADDRESS"))
