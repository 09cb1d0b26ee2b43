"""Clusters of two nodes: an actor for each of a hundred clients, shares of GPUs, and what the dry run says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raysim.engine.records import Startup
from raysim.runs.run import run
from tests.conftest import REPOSITORY
from tests.engine.scenarios import loaded

pytestmark = pytest.mark.ray

SECOND = "127.0.0.2"
"""Address of the second node; the first has that of this machine."""

MANY = [
    "rounds=2", "clients.count=100", "clients.participation=0.02", "clients.models=[digits_mlp64, digits_mlp128]",
    "resources={clients_per_actor: 1, cpus_per_actor: 0.01, gpus_per_actor: 0}",
]  # fmt: skip
"""Few participants: an actor that had work takes 0.3 GB, one that had none 0.06 GB."""


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
