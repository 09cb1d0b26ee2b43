"""Client actors stay off the head node, and the server on it, also after a recovery."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.ray, pytest.mark.large]

WORKERS_ONLY = """
import ray
from ray.cluster_utils import Cluster
from raysim.common.logs import show_logs
from raysim.engine.policies.placement import ResourceRequest, lay_out
from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.pool import ActorPool
from raysim.engine.ray.session import machine
from tests.engine.scenarios import loaded, planned
from tests.engine.ray.deaths import GIVEN, kill

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, logging_level="ERROR")
requests = [ResourceRequest(tuple(range(8)), None, None, 1.0, 0.0)]
pool = ActorPool(lay_out(requests, machine(False)), head=False)
backend = RayBackend(pool)
plan, images = planned(loaded(GIVEN))
backend.start(plan, images)

def away():
    return [worker.node != pool.driver_node for worker in pool.clients]

assert away() == [True]
kill(pool.clients[0])
warnings = []
with show_logs(warnings.append):
    backend.recover()
assert warnings == [] and away() == [True]  # the head has more room, but must stay free
for _ in range(2):  # Ray would choose a random node
    assert pool.server.node == pool.driver_node
    kill(pool.server)
    backend.recover()
backend.close()
ray.shutdown()
cluster.shutdown()
"""


def test_recovery_keeps_the_head_node_free() -> None:
    code = [sys.executable, "-c", WORKERS_ONLY]
    run = subprocess.run(code, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
