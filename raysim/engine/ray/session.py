"""The Ray that a run uses: joined or started, and its nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray._private import ray_constants

from raysim.common.errors import ScenarioError
from raysim.engine.policies.placement import ClusterResources, Node
from raysim.engine.ray import local_cluster

_ahead = False  # whether this process has started a Ray that no caller of `connect` has taken over yet


def connect(local_cpus: float | None = None) -> bool:
    """Join the Ray at RAY_ADDRESS, or the one that this process has joined already; else start a local one.

    local_cpus: CPUs that a local Ray should offer; more than the machine has is allowed, Ray only counts them.
    Returns whether it started a Ray, or took one over, which the caller stops. Raises `ScenarioError` when RAY_ADDRESS
    does not answer.
    """
    global _ahead
    if ray.is_initialized():
        taken_over, _ahead = _ahead, False
        return taken_over
    address = os.environ.get("RAY_ADDRESS")
    if address and address.startswith("ray://"):
        raise ScenarioError(
            f"--address or RAY_ADDRESS: {address} is for the Ray Client, which raysim does not use; from outside the "
            "cluster `raysim submit` runs a scenario on it"
        )
    # Ray's handler in C++ would print a stack at a SIGTERM, abort 3 s later, and leave the default behind at shutdown.
    # Ray read the variable of this name when it was imported; only this process does without the handler.
    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
    # Ray would print the pending calls of a dead actor; raysim reports its death in one line.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # Ray would otherwise warn that this is about to change; actors without a GPU do not depend on it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": True}
    if not address:
        cpus = None if local_cpus is None else max(int(np.ceil(local_cpus)), os.cpu_count() or 1)
        local_cluster.start(num_cpus=cpus, **quiet)
        return True
    # `ray start` enables authentication where there is a token; not every release of `ray.init` does.
    variables = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if "RAY_AUTH_MODE" not in os.environ and (variables or (Path.home() / ".ray" / "auth_token").exists()):
        local_cluster.set_environment({"RAY_AUTH_MODE": "token"})
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ScenarioError(
            f"--address or RAY_ADDRESS: {address} given, but no Ray cluster answers there "
            f"({str(error).splitlines()[0]}); without it, a local Ray is started"
        ) from None
    return False


def connect_ahead() -> None:
    """Start a local Ray with this machine's CPUs for a later caller of `connect`, unless one is joined."""
    global _ahead
    _ahead = connect(1.0)


def stop_ahead() -> None:
    """Stop the Ray of `connect_ahead`, if nothing took it over."""
    global _ahead
    if _ahead:
        local_cluster.stop(remove_logs=True)
    _ahead = False


def is_ahead() -> bool:
    """Whether this process has a Ray of `connect_ahead`, which is not yet any run's."""
    return _ahead


def nodes(head: bool = True) -> list[Node]:
    """The connected cluster's living nodes with all their CPUs and GPUs. head: with the head node."""
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
    """The resources of the connected cluster. head: with the head node."""
    return ClusterResources.of(nodes(head))


def attached() -> bool:
    """Whether the connected Ray was running before this process."""
    return bool(os.environ.get("RAY_ADDRESS"))
