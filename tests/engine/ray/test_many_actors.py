"""Clusters of two nodes: an actor for each of a hundred clients, shares of GPUs, and what the dry run says of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.cli.main import cli
from raysim.engine.records import Startup
from raysim.runs.machine import make_backend
from raysim.runs.plan import make_plan
from raysim.runs.run import run
from raysim.scenario.scenario import Scenario
from tests.conftest import REPOSITORY
from tests.engine.scenarios import digits, loaded

pytestmark = pytest.mark.ray

SECOND = "127.0.0.2"
"""Address of the second node; the first has that of this machine."""

MANY = [
    "rounds=2", "clients.count=100", "clients.participation=0.02", "clients.models=[digits_mlp64, digits_mlp128]",
    "resources={clients_per_actor: 1, cpus_per_actor: 0.01, gpus_per_actor: 0}",
]  # fmt: skip
"""Few participants: an actor that had work takes 0.3 GB, one that had none 0.06 GB."""

LARGE_APART = {
    "actors": 3, "cpus_per_actor": 0.1, "gpus_per_actor": 0.3,
    "overrides": [{"models": ["digits_resnet"], "actors": 1, "gpus_per_actor": 1}],
}  # fmt: skip
"""One actor with a GPU of its own, three that share the other."""


@contextmanager
def two_nodes(cpus: int = 1, gpus: int = 0) -> Iterator[str]:
    """A cluster in this process, which must not have another Ray; yields its address."""
    import ray
    from ray.cluster_utils import Cluster

    # Ray starts a worker per CPU ahead of time, so there are few CPUs, of which actors take small shares.
    head = {"num_cpus": cpus, "num_gpus": gpus, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=cpus, num_gpus=gpus, node_ip_address=SECOND)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def run_in_process(name: str, folder: Path, limit_s: float) -> tuple[Any, str]:
    """The result (as JSON) and the output of a function of this module in a process without the tests' Ray."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"PYTHONPATH": str(REPOSITORY)}
    answer = "import json, pathlib; pathlib.Path('found.json').write_text(json.dumps(found))"
    code = f"from tests.engine.ray import test_many_actors; found = test_many_actors.{name}(); {answer}"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=limit_s
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads((folder / "found.json").read_text()), run.stdout + run.stderr


def run_many() -> tuple[Any, list[int]]:
    """(summary of a run with a hundred actors, actors per node)."""
    from ray._private.state import actors

    with two_nodes():
        result = run(loaded(*MANY, "backend=ray"))
        nodes = [one["Address"]["NodeID"] for one in actors().values() if one["ActorClassName"] == "ClientActor"]
        return result.summary, list(Counter(nodes).values())


@pytest.mark.large
def test_an_actor_for_each_of_a_hundred_clients(workplace: Path) -> None:
    (summary, held), output = run_in_process("run_many", workplace, 500)
    here = run(loaded(*MANY), quiet=True)
    assert summary["state_digest"] == here.state_digest
    assert here.summary["startup"] is None
    assert held == [50, 50]
    startup = summary["startup"]
    assert startup["actors"] == summary["actors"] == 100
    assert 0 < startup["slowest_s"] <= startup["seconds"] < summary["seconds"]["total"]
    assert startup["per_actor_s"] == startup["seconds"] / 100
    assert f"node {SECOND}: 50 client actors" in output
    print(startup)


def test_startup_counts_from_the_first_request_to_the_last_answer() -> None:
    found = Startup.of([10.0, 10.5, 11.0], [14.0, 18.5, 16.0])
    assert found == Startup(actors=3, seconds=8.5, slowest_s=8.0)
    assert found.facts() == {"actors": 3, "seconds": 8.5, "slowest_s": 8.0, "per_actor_s": 8.5 / 3}


def use_gpus() -> dict[str, Any]:
    """Return what actors hold of two nodes with a logical GPU each."""
    scenario = digits(backend="ray", resources=LARGE_APART)
    Path("tiny.yaml").write_text(yaml.safe_dump(scenario))
    with two_nodes(cpus=2, gpus=1):
        cli.main(["launch", "tiny.yaml", "--dry-run"], standalone_mode=False)
        return {"held": held(Scenario.load(scenario))}


def held(checked: Scenario) -> tuple[list[Any], dict[str, float]]:
    """(each actor's node, GPUs and shares; what is left), once all have started."""
    import ray

    from raysim.engine.ray.backend import RayBackend
    from raysim.engine.ray.session import nodes

    with ExitStack() as cleanup:
        plan, _ = make_plan(checked)
        backend = make_backend(checked, plan, cleanup, lambda: True)
        assert plan.layout is not None
        assert isinstance(backend, RayBackend)
        names = {node.id: node.name for node in nodes()}
        answers = ray.get([host.actor.__ray_call__.remote(holding) for host in backend.pool.clients])
        actors = [[names[node], gpus, shares["CPU"], shares["GPU"]] for node, gpus, shares in answers]
        return actors, left_over(plan.layout.cpus, plan.layout.gpus)


def holding(actor: Any) -> tuple[str, list[int], dict[str, float]]:
    """Runs in an actor: its node, its GPUs, and its share of resources."""
    import ray

    context = ray.get_runtime_context()
    return context.get_node_id(), ray.get_gpu_ids(), context.get_assigned_resources()


def left_over(cpus: float, gpus: float) -> dict[str, float]:
    """What is free, once Ray's counts, which follow with a delay, say that so much is taken."""
    import ray

    for _ in range(100):
        all_, free = ray.cluster_resources(), ray.available_resources()
        if (all_["CPU"] - free["CPU"], all_["GPU"] - free["GPU"]) == pytest.approx((cpus, gpus)):
            break
        time.sleep(0.1)
    return {name: free[name] for name in ("CPU", "GPU")}


@pytest.fixture(scope="module")
def gpus_used(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What `use_gpus` found, and what the dry run in it showed."""
    return run_in_process("use_gpus", tmp_path_factory.mktemp("gpus"), 300)


@pytest.mark.large
def test_large_models_have_a_gpu_of_their_own(gpus_used: tuple[dict[str, Any], str]) -> None:
    """Three actors with 0.3 of a GPU share one, the large models' actor has the other; and the dry run output so."""
    found, shown = gpus_used
    actors, free = found["held"]
    (large, *large_share), *small = actors
    assert large_share == [[0], 0.1, 1.0]
    assert len({node for node, *_ in small}) == 1
    assert {node for node, *_ in small} != {large}
    assert [share for _, *share in small] == [[[0], 0.1, 0.3]] * 3
    assert free == pytest.approx({"CPU": 4 - 4 * 0.1, "GPU": 2 - 1 - 3 * 0.3})
    rows = dict(re.findall(r"^ *(\d+\.\d+\.\d+\.\d+) +(.*)$", shown, re.MULTILINE))
    assert {node: " ".join(row.split()) for node, row in rows.items()} == {
        large: "0.1 of 2 1 of 1 1 client actor (1 for digits_resnet)",
        small[0][0]: "0.3 of 2 0.9 of 1 3 client actors",
    }
    assert "on 2 nodes with 4 CPUs and 2 GPUs" in shown
