"""A node that joins during a run is used from a later round on, and no bit changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.ray

JOIN = """
import ray
from ray.cluster_utils import Cluster
from raysim.engine import ray_crew
from raysim.engine.inprocess import InProcess
from raysim.engine.placement import Ask, make_plan
from raysim.engine.ray_backend import RayBackend
from raysim.engine.ray_crew import Crew
from raysim.engine.ray_session import machine
from tests.engine.scenarios import loaded
from tests.engine.test_survival import outcome
from tests.ray.test_recovery import GIVEN, Killing

ray_crew.LOOK_FOR_NODES_S = 0.0
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
ray.init(address=cluster.address, logging_level="ERROR")
asks = [Ask(tuple(range(8)), None, None, 1.0, 0.0)]
notes = []
plan = make_plan(asks, machine())
crew = Crew(plan, replan=lambda found: make_plan(asks, found), note=notes.append)
backend = RayBackend(crew)
assert len(crew.hosts) == 1
nodes = []

def join(backend):
    if not nodes:
        nodes.append(cluster.add_node(num_cpus=2))
    else:
        assert len(crew.joining) == 2
        ray.wait([answer for _, _, answer in crew.joining], num_returns=2, timeout=120)

killing = Killing(backend, [1, 2], join)
found = outcome(loaded(GIVEN), backend)
assert not killing.left
assert found == outcome(loaded(GIVEN), InProcess())
assert len(crew.everyone) == 3 + 1
assert all(member.usage for member in crew.everyone)  # all three actors and the server had work
assert len({member.node for member in crew.everyone}) == 2
print(*notes, sep=" | ")
backend.close()
ray.shutdown()
cluster.shutdown()
"""


def test_a_node_that_joins_is_used() -> None:
    run = subprocess.run([sys.executable, "-c", JOIN], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    told = run.stdout.strip().splitlines()[-1]
    assert "an actor on a node that joined takes part: 3 client actors now" in told


WORKERS_ONLY = """
import time
import ray
from ray.cluster_utils import Cluster
from raysim.engine import ray_crew
from raysim.engine.placement import Ask, make_plan
from raysim.engine.ray_backend import RayBackend
from raysim.engine.ray_crew import Crew
from raysim.engine.ray_session import machine
from tests.engine.scenarios import loaded
from tests.engine.test_survival import world_for
from tests.ray.test_recovery import GIVEN, kill

ray_crew.LOOK_FOR_NODES_S = 0.0
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, logging_level="ERROR")
asks = [Ask(tuple(range(8)), None, None, 1.0, 0.0)]
crew = Crew(make_plan(asks, machine(False)), head=False, replan=lambda found: make_plan(asks, found))
backend = RayBackend(crew)
world, images, _ = world_for(loaded(GIVEN))
backend.start(world, images)

def until(done):
    for _ in range(600):
        crew.take_in()
        if done():
            return
        time.sleep(0.1)
    raise AssertionError(f"{len(crew.hosts)} hosts, {len(crew.joining)} joining")

def away():
    return [member.node != crew.here for member in crew.hosts]

assert away() == [True]
kill(crew.hosts[0])
assert backend.recover() == [] and away() == [True]  # the head has more room, but is not to be used
cluster.add_node(num_cpus=1)
until(lambda: crew.joining)
kill(crew.hosts[0])
assert backend.recover() == []
until(lambda: len(crew.hosts) == 2)  # the one that was joining is asked for again
assert away() == [True, True] and crew.plan.num_actors == 2
backend.close()
ray.shutdown()
cluster.shutdown()
"""


def test_a_death_neither_fills_the_head_nor_forgets_who_joins() -> None:
    code = [sys.executable, "-c", WORKERS_ONLY]
    run = subprocess.run(code, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
