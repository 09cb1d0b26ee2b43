"""A cluster of two nodes with an actor for each of a hundred clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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

# Ray starts a worker per CPU ahead of time, so there are few CPUs, of which actors take small shares.
RUN = """
import json
from collections import Counter
from pathlib import Path
import ray
from ray._private.state import actors
from ray.cluster_utils import Cluster
from raysim.runs.run import run
from tests.engine.ray.test_many_actors import MANY, SECOND
from tests.engine.scenarios import loaded

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1, node_ip_address=SECOND)
ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
summary = run(loaded(*MANY, "backend=ray")).summary
nodes = [one["Address"]["NodeID"] for one in actors().values() if one["ActorClassName"] == "ClientActor"]
Path("found.json").write_text(json.dumps([summary, list(Counter(nodes).values())]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.large
def test_an_actor_for_each_of_a_hundred_clients(workplace: Path) -> None:
    """In a process of its own, since that of the tests has another Ray."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", RUN], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    summary, held = json.loads(Path("found.json").read_text())
    here = run(loaded(*MANY), quiet=True)
    assert summary["state_digest"] == here.state_digest
    assert here.summary["startup"] is None
    assert held == [50, 50]
    assert summary["actors"] == 100
    assert 0 < summary["startup"] < summary["seconds"]["total"]
    assert f"node {SECOND}: 50 client actors" in done.stdout + done.stderr
    print(summary["startup"])
