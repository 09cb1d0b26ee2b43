"""The Ray session of a run: connect to a cluster or start a local Ray, and list the nodes."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray._private import ray_constants, services

from raysim.common.errors import ScenarioError
from raysim.common.files import reason
from raysim.engine.policies.placement import ClusterResources, Node
from raysim.engine.ray import local_cluster

HEAD = "node:__internal_head__"
"""Name of the resource that only the head node has."""

ANSWER_S = 5.0
"""Maximum seconds to wait for an answer of a cluster. Ray itself would try for 14 minutes, or for ever."""

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The first bytes that an HTTP/2 client sends: the preface and an empty SETTINGS frame. Ray's server answers with a
SETTINGS frame, whose fourth byte is 4. A dashboard or another kind of program answers differently."""


def connect(local_cpus: float | None = None) -> bool:
    """Connect to the Ray at RAY_ADDRESS, keep an existing connection of this process, or start a local Ray.

    local_cpus: CPUs that a local Ray should offer; it may exceed the machine's, since Ray only counts them.
    Returns whether the caller must stop this Ray, because it was started here. Raises `ScenarioError` if RAY_ADDRESS
    does not answer.
    """
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    if address:
        check_answer(address)
    # On SIGTERM, Ray's C++ handler would print a stack and abort after 3 s; at shutdown, it would set the default
    # handler. Ray has already read the environment variable with this name, so only this process is affected.
    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
    # Under `uv run`, Ray would copy the working directory to every node and start each actor by `uv run` in the copy.
    # That would install the project again, perhaps with other versions. Ray has already read the environment variable.
    if "RAY_ENABLE_UV_RUN_RUNTIME_ENV" not in os.environ:
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    # Ray would print the pending calls of a dead actor, whose death raysim reports in one line.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # Without this setting, Ray warns of a future change, which does not affect actors without a GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": True}
    if not address:
        cpus = None if local_cpus is None else max(int(np.ceil(local_cpus)), os.cpu_count() or 1)
        local_cluster.start(num_cpus=cpus, **quiet)
        return True
    # `ray start` uses authentication if a token exists, but some releases of `ray.init` do not.
    variables = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if "RAY_AUTH_MODE" not in os.environ and (variables or (Path.home() / ".ray" / "auth_token").exists()):
        local_cluster.set_environment({"RAY_AUTH_MODE": "token"})
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, str(error).splitlines()[0]) from None
    return False


def check_answer(address: str) -> None:
    """Raise `ScenarioError` unless Ray at this address (HOST:PORT or `auto`) answers within seconds."""
    if "://" in address:
        raise ScenarioError(
            f"RAY_ADDRESS: {address} is not the address of a cluster's head node (HOST:PORT, or `auto`); "
            "use `raysim submit` to run a scenario from outside the cluster"
        )
    try:
        target = services.canonicalize_bootstrap_address(address)
        if target is None:  # for the address `local`
            return
        host, _, port = target.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":  # with TLS, the greeting would need encryption
                connection.sendall(GREETING)
                if connection.recv(9)[3:4] != b"\4":
                    raise ConnectionError("a program other than Ray answers")
    except (OSError, ValueError) as error:
        raise _no_cluster(address, reason(error) if isinstance(error, OSError) else str(error)) from None


def _no_cluster(address: str, why: str) -> ScenarioError:
    return ScenarioError(
        f"RAY_ADDRESS: no Ray cluster answers at {address} ({why}); correct the address, or remove it "
        "(`unset RAY_ADDRESS`) to run on a local Ray"
    )


def nodes(head: bool = True) -> list[Node]:
    """Return the nodes of the connected cluster that may have actors, with all CPUs and GPUs of each.

    head: include the head node.
    """
    return [
        Node(
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
            node["NodeID"],
        )
        for node in ray.nodes()
        if node["Alive"] and (head or HEAD not in node["Resources"])
    ]


def head_id() -> str:
    """Return the id of the head node."""
    return next((node["NodeID"] for node in ray.nodes() if HEAD in node["Resources"]), "")


def growing() -> bool:
    """Return whether Ray may add nodes to the connected cluster.

    Nodes that `ray up` or KubeRay has started have this label. Ray does not say whether they will start more: on own
    hosts, or on KubeRay without autoscaling, a run waits for nodes that never come, and ends with a sentence.
    """
    named = any("ray.io/node-group" in node["Labels"] for node in ray.nodes() if node["Alive"])
    return named and not local_cluster.is_running()


def machine(head: bool = True) -> ClusterResources:
    """Return the resources of the connected cluster. head: include the head node."""
    return replace(ClusterResources.of(nodes(head)), growing=growing())


def attached() -> bool:
    """Return whether RAY_ADDRESS names a Ray that was running before this process."""
    return bool(os.environ.get("RAY_ADDRESS"))
