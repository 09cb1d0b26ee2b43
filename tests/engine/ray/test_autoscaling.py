"""On a cluster with an autoscaler, a number of actors requests nodes, and the request ends with the run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.ray, pytest.mark.large]

SCRIPT = """
from tests.engine.ray.autoscaling import autoscaler, autoscaling_cluster

with autoscaling_cluster(cpus=1, most=2) as address:
    import time
    import pytest
    import ray
    from raysim.common.errors import RunError
    from raysim.engine.inprocess import InProcessBackend
    from raysim.engine.policies.placement import ResourceRequest, lay_out
    from raysim.engine.ray import pool as pool_module, session
    from raysim.engine.ray.backend import RayBackend
    from raysim.engine.ray.pool import ActorPool
    from tests.engine.scenarios import loaded, outcome
    from tests.engine.ray.deaths import GIVEN, Killing, kill

    def pool_of(actors, head):
        plan = lay_out([ResourceRequest(tuple(range(8)), actors, None, 1.0, 0.0)], session.machine(head))
        return ActorPool(plan, head=head)

    def until(done, seconds=120):
        began = time.monotonic()
        while not done():
            assert time.monotonic() - began < seconds, ray.nodes()
            time.sleep(0.2)

    ray.init(address=address, logging_level="ERROR")
    assert session.growing() and session.nodes(head=False) == []
    autoscaler().suspend()
    pool_module.START_TIMEOUT_S = 1.0
    with pytest.raises(RunError, match="ray status"):
        outcome(loaded(GIVEN), RayBackend(pool_of(2, False)))
    autoscaler().resume()
    pool_module.START_TIMEOUT_S = 300.0
    pool = pool_of(2, True)
    backend = RayBackend(pool)
    killing = Killing(backend, [2], lambda _: kill(pool.clients[0]))
    assert outcome(loaded(GIVEN), backend) == outcome(loaded(GIVEN), InProcessBackend())
    assert not killing.left and len({worker.node for worker in pool.clients}) == 2
    until(lambda: session.nodes(head=False) == [])
"""


def test_nodes_of_an_autoscaler() -> None:
    code = [sys.executable, "-c", SCRIPT]
    run = subprocess.run(code, cwd=REPOSITORY, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
