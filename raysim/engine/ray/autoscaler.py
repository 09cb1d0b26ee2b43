"""The autoscaler of the connected cluster: whether one runs, and the nodes that it may add.

A run requests nodes by starting actors that fit on no node yet: Ray's autoscaler adds nodes for pending actors. Such a
request belongs to the run, and Ray withdraws it when the run ends, even if the driver is killed.
`ray.autoscaler.sdk.request_resources` has one request for the whole cluster instead, so two runs would replace each
other's, and it remains after the death of its driver.

Ray has no public interface for the size that an autoscaler may reach. All private names are in this file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import ray
import yaml
from ray.exceptions import RaySystemError

from raysim.engine.policies.placement import ClusterResources, Growth, Node

OWN_HOSTS = "local.cluster.node"
"""The type of all nodes that `ray up` starts on own hosts: all of them at once, none later."""


class NodeType(NamedTuple):
    """Nodes of one kind that an autoscaler may start."""

    name: str
    resources: Mapping[str, float]
    most: int  # -1: any number


def growth(present: Sequence[Node], head: Sequence[Node]) -> Growth | None:
    """Return the nodes that the cluster may have; None if no autoscaler adds nodes. head: the head node, if it counts.

    present: the nodes of the cluster now.
    """
    types = _reported_types() or _configured_types()
    if not types:
        return Growth(tuple(present), None) if _runs() else None
    if any(one.most < 0 for one in types):
        return Growth(tuple(present), None)
    added = [
        Node(one.name, one.resources.get("CPU", 0.0), one.resources.get("GPU", 0.0))
        for one in types
        for _ in range(one.most)
    ]
    largest = (*head, *added)
    now, most = ClusterResources.of(present), ClusterResources.of(largest)
    if most.cpus <= now.cpus and most.gpus <= now.gpus:
        return None
    return Growth(tuple(present), largest)


def _reported_types() -> list[NodeType]:
    """Return the node types that the autoscaler has reported to Ray; that of Ray 2.60 reports none."""
    with contextlib.suppress(ImportError, AttributeError, RaySystemError):
        from ray._private.state import state

        config = state.get_cluster_config()
        groups = config.node_group_configs if config is not None else ()
        return [NodeType(group.name, dict(group.resources), group.max_count) for group in groups if group.resources]
    return []


def _configured_types() -> list[NodeType]:
    """Return the node types in the file of `ray up`, if this process is on the head node."""
    config = _configuration()
    most = config.get("max_workers", 2)  # Ray's default
    return [
        NodeType(name, resources, min(one.get("max_workers", most), most))
        for name, one in config.get("available_node_types", {}).items()
        if name != config.get("head_node_type") and (resources := one.get("resources"))
    ]


def _configuration() -> Mapping[str, Any]:
    """Return the configuration with which the autoscaler of this cluster was started; empty if it is not readable."""
    address = f"--gcs-address={ray.get_runtime_context().gcs_address}"
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        path = next((one.partition("=")[2] for one in command if one.startswith("--autoscaling-config=")), None)
        if path and address in command:
            with contextlib.suppress(OSError, yaml.YAMLError):
                config = yaml.safe_load(Path(path).expanduser().read_text())
                return config if isinstance(config, dict) else {}
    return {}


def _runs() -> bool:
    """Return whether an autoscaler has started nodes of this cluster; KubeRay's does not tell its node types.

    On a cluster without an autoscaler, Ray calls the type of each node "node_" and its id. But KubeRay names the types
    of all nodes; if it runs an autoscaler, it switches off that of Ray in the command of the head node.
    """
    command = os.environ.get("KUBERAY_GEN_RAY_START_CMD")
    if command is not None and "--no-monitor" not in command:
        return False
    types: set[str] = set()
    with contextlib.suppress(ImportError, AttributeError, RaySystemError, ValueError):
        from ray.autoscaler.v2.sdk import get_cluster_status
        from ray.autoscaler.v2.utils import is_autoscaler_v2
        from ray.experimental.internal_kv import _internal_kv_get

        if is_autoscaler_v2():
            status = get_cluster_status(ray.get_runtime_context().gcs_address)
            types = {node.ray_node_type_name for node in (*status.active_nodes, *status.idle_nodes)}
        elif text := _internal_kv_get("__autoscaling_status"):
            types = set(json.loads(text).get("autoscaler_report", {}).get("active_nodes", {}))
    return any(not name.startswith("node_") for name in types - {OWN_HOSTS})
