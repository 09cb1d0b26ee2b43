"""A run on a cluster with an autoscaler waits for nodes, grows with them, and withdraws its request at its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.ray, pytest.mark.large]

HEAD = """
import sys
from tests.engine.ray.autoscaling import autoscaler, autoscaling_cluster

version = sys.argv[1]
with autoscaling_cluster(version, cpus=1, most=2) as address:
    import time
    import pytest
    import ray
    from raysim.common.errors import RunError, ScenarioError
    from raysim.common.logs import show_logs
    from raysim.engine.inprocess import InProcessBackend
    from raysim.engine.policies.placement import ResourceRequest, lay_out
    from raysim.engine.ray import autoscaler as autoscaler_module
    from raysim.engine.ray import pool as pool_module, session, starting
    from raysim.engine.ray.backend import RayBackend
    from raysim.engine.ray.pool import ActorPool
    from tests.engine.scenarios import loaded, outcome
    from tests.engine.ray.deaths import GIVEN, Killing

    pool_module.NODE_CHECK_S = 0.0
    ray.init(address=address, logging_level="ERROR")

    def request(actors):
        return [ResourceRequest(tuple(range(8)), actors, None, 1.0, 0.0)]

    def pool_of(actors):
        growth = session.growth()
        assert [node.cpus for node in growth.largest] == [0, 1, 1]
        plan = lay_out(request(actors), growth.resources)
        return ActorPool(plan, replan=lambda found: lay_out(request(actors), found))

    def until(done, seconds=120):
        began = time.monotonic()
        while not done():
            assert time.monotonic() - began < seconds, ray.nodes()
            time.sleep(0.2)
"""

GROWS = (
    HEAD
    + """
    assert session.nodes(head=False) == []
    pool = pool_of(None)
    assert [pool.plan.num_actors, pool.largest.num_actors] == [1, 2]
    backend = RayBackend(pool)

    def wait_for_a_node(_):
        [(_, answer)] = pool.starting
        assert ray.wait([answer], timeout=300)[0], ray.nodes()

    killing = Killing(backend, [1], wait_for_a_node)
    notes = []
    with show_logs(notes.append):
        found = outcome(loaded(GIVEN), backend)  # closes the backend, which withdraws the request
    assert found == outcome(loaded(GIVEN), InProcessBackend())
    assert len({worker.node for worker in pool.clients}) == 2, (pool.clients, notes)
    assert notes[0] == (
        "waiting for nodes from the cluster's autoscaler: 1 of 1 client actors (1 CPU and 0 GPU each) fit on no node. "
        "The run ends if no node joins for 15 minutes"
    )
    assert notes[-1] == "added an actor on a new node: the run now has 2 client actors"
    until(lambda: session.nodes(head=False) == [])
"""
)

WAITS = (
    HEAD
    + """
    until(autoscaler_module._runs)  # the only source of a driver that cannot read the autoscaler's configuration
    with pytest.raises(ScenarioError, match="the cluster has only 2 at the maximum size of its autoscaler"):
        pool_of(3)
    autoscaler().suspend()
    pool = pool_of(2)
    starting.NODES_TIMEOUT_S = 1.0
    with pytest.raises(RunError, match=r"^starting: no further node joined \\(2 of 2 client actors .* within 1 s; on"):
        outcome(loaded(GIVEN), RayBackend(pool))
    autoscaler().resume()
    starting.NODES_TIMEOUT_S = 900.0
    pool = pool_of(2)
    assert pool.plan.num_actors == 2
    assert outcome(loaded(GIVEN), RayBackend(pool)) == outcome(loaded(GIVEN), InProcessBackend())
    assert len({worker.node for worker in pool.clients}) == 2
    until(lambda: session.nodes(head=False) == [])
"""
)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("script", [GROWS, WAITS], ids=["grows", "waits"])
def test_nodes_of_an_autoscaler(script: str, version: str) -> None:
    code = [sys.executable, "-c", script, version]
    run = subprocess.run(code, cwd=REPOSITORY, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
