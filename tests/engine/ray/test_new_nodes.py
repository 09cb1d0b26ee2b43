"""A run starts actors on nodes that are added to the cluster, and no bit changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.ray, pytest.mark.large]

NEW_NODE = """
import ray
from ray.cluster_utils import Cluster
from raysim.common.logs import show_logs
from raysim.engine.ray import pool as pool_module
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.policies.placement import ResourceRequest, lay_out
from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.pool import ActorPool
from raysim.engine.ray.session import machine
from tests.engine.scenarios import loaded, outcome, planned
from tests.engine.ray.deaths import GIVEN, Killing

pool_module.NODE_CHECK_S = 0.0
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
ray.init(address=cluster.address, logging_level="ERROR")
requests = [ResourceRequest(tuple(range(8)), None, None, 1.0, 0.0)]
notes = []
plan = lay_out(requests, machine())
pool = ActorPool(plan, replan=lambda found: lay_out(requests, found))
backend = RayBackend(pool)
assert len(pool.clients) == 1
nodes = []

def add_node(backend):
    if not nodes:
        nodes.append(cluster.add_node(num_cpus=2))
    else:
        assert len(pool.starting) == 2
        ray.wait([answer for _, answer in pool.starting], num_returns=2, timeout=120)

killing = Killing(backend, [1, 2], add_node)
with show_logs(notes.append):
    found = outcome(loaded(GIVEN), backend)
assert not killing.left
assert found == outcome(loaded(GIVEN), InProcessBackend())
assert len(pool.workers) == 3 + 1
assert all(worker.usage for worker in pool.workers)  # all three actors and the server had work
assert len({worker.node for worker in pool.workers}) == 2
print(*notes, sep=" | ")
backend.close()
ray.shutdown()
cluster.shutdown()
"""


def test_actors_start_on_a_new_node() -> None:
    run = subprocess.run([sys.executable, "-c", NEW_NODE], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    notes = run.stdout.strip().splitlines()[-1]
    assert "added an actor on a new node: the run now has 3 client actors" in notes


WORKERS_ONLY = """
import time
import ray
from ray.cluster_utils import Cluster
from raysim.common.logs import show_logs
from raysim.engine.ray import pool as pool_module
from raysim.engine.policies.placement import ResourceRequest, lay_out
from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.pool import ActorPool
from raysim.engine.ray.session import machine
from tests.engine.scenarios import loaded
from tests.engine.scenarios import spec_for
from tests.engine.ray.deaths import GIVEN, kill

pool_module.NODE_CHECK_S = 0.0
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, logging_level="ERROR")
requests = [ResourceRequest(tuple(range(8)), None, None, 1.0, 0.0)]
pool = ActorPool(lay_out(requests, machine(False)), head=False, replan=lambda found: lay_out(requests, found))
backend = RayBackend(pool)
spec, images = planned(loaded(GIVEN))
backend.start(spec, images)

def until(done):
    for _ in range(600):
        pool.add_new_actors()
        if done():
            return
        time.sleep(0.1)
    raise AssertionError(f"{len(pool.clients)} client actors, {len(pool.starting)} starting")

def away():
    return [worker.node != pool.driver_node for worker in pool.clients]

assert away() == [True]
kill(pool.clients[0])
warnings = []
with show_logs(warnings.append):
    backend.recover()
assert warnings == [] and away() == [True]  # the head has more room, but must stay free
cluster.add_node(num_cpus=1)
until(lambda: pool.starting)
kill(pool.clients[0])
with show_logs(warnings.append):
    backend.recover()
assert warnings == []
until(lambda: len(pool.clients) == 2)  # recovery started it again
assert away() == [True, True] and pool.plan.num_actors == 2
for _ in range(5):  # Ray would choose a random node
    assert pool.server.node == pool.driver_node
    kill(pool.server)
    backend.recover()
backend.close()
ray.shutdown()
cluster.shutdown()
"""


def test_recovery_keeps_the_head_node_free_and_uses_new_nodes() -> None:
    code = [sys.executable, "-c", WORKERS_ONLY]
    run = subprocess.run(code, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
