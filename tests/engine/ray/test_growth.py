"""The nodes that an autoscaler may add, from what Ray and the configuration tell about it; no Ray is started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from raysim.engine.policies.placement import Node
from raysim.engine.ray import autoscaler
from raysim.engine.ray.autoscaler import NodeType, growth

HEAD, PRESENT = Node("head", 1, 0, "h"), Node("a", 2, 0, "a")
WORKER = NodeType("worker", {"CPU": 2.0}, 3)


@pytest.mark.parametrize(
    ("reported", "configured", "runs", "largest"),
    [
        ([], [], False, False),  # no autoscaler
        ([], [], True, None),  # one that does not tell its node types
        ([], [WORKER], True, [1, 2, 2, 2]),
        ([WORKER], [NodeType("other", {"CPU": 9.0}, 1)], True, [1, 2, 2, 2]),  # what the autoscaler reports counts
        ([WORKER._replace(most=-1)], [], True, None),
        ([WORKER._replace(most=1)], [], True, False),  # all nodes are there
        ([WORKER._replace(most=0)], [], True, False),
        ([NodeType("gpu", {"CPU": 1.0, "GPU": 1.0}, 1)], [], True, [1, 1]),  # fewer CPUs, but a GPU
    ],
)
def test_growth(
    reported: list[NodeType],
    configured: list[NodeType],
    runs: bool,
    largest: list[float] | bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"_reported_types": reported, "_configured_types": configured, "_runs": runs}.items():
        monkeypatch.setattr(autoscaler, name, lambda value=value: value)
    found = growth([HEAD, PRESENT], [HEAD])
    if largest is False:
        assert found is None
        return
    assert found is not None
    assert found.present == (HEAD, PRESENT)
    assert (found.largest and [node.cpus for node in found.largest]) == largest


def test_the_node_types_of_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    types = {
        "head": {"resources": {"CPU": 8}},
        "gpu": {"resources": {"CPU": 8, "GPU": 1}, "max_workers": 4},
        "many": {"resources": {"CPU": 2}, "max_workers": 100},
        "any": {"resources": {"CPU": 1}},
        "unknown": {"resources": {}, "max_workers": 2},
    }
    config = {"max_workers": 10, "head_node_type": "head", "available_node_types": types}
    monkeypatch.setattr(autoscaler, "_configuration", lambda: config)
    found = {one.name: one.most for one in autoscaler._configured_types()}
    assert found == {"gpu": 4, "many": 10, "any": 10}
    monkeypatch.setattr(autoscaler, "_configuration", dict)
    assert autoscaler._configured_types() == []


@pytest.mark.parametrize(
    ("command", "node_type", "runs"),
    [
        (None, "gpu", True),
        (None, "node_0f3a", False),  # no autoscaler
        (None, "local.cluster.node", False),  # `ray up` on own hosts starts all of them
        ("ray start --head  --block  --num-cpus=0 ", "gpu", False),  # KubeRay names types also without an autoscaler
        ("ray start --head  --block  --no-monitor  --num-cpus=0 ", "gpu", True),
    ],
)
def test_names_of_node_types_alone_are_no_autoscaler(
    command: str | None, node_type: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.autoscaler.v2 import sdk, utils

    monkeypatch.delenv("KUBERAY_GEN_RAY_START_CMD", raising=False)
    if command is not None:
        monkeypatch.setenv("KUBERAY_GEN_RAY_START_CMD", command)
    status = SimpleNamespace(active_nodes=[SimpleNamespace(ray_node_type_name=node_type)], idle_nodes=[])
    monkeypatch.setattr(utils, "is_autoscaler_v2", lambda: True)
    monkeypatch.setattr(sdk, "get_cluster_status", lambda address: status)
    monkeypatch.setattr(autoscaler.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="127.0.0.1:1"))
    assert autoscaler._runs() is runs
