"""A run leaves a node that is being drained at the end of a round, and repeats no round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.ray, pytest.mark.large]

DRAINED = """
import sys, time
from pathlib import Path
import ray
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from raysim.common.logs import show_logs
from raysim.engine.checkpoint.manager import CheckpointManager
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.policies.placement import ResourceRequest, lay_out
from raysim.engine.progress import Progress
from raysim.engine.ray import pool as pool_module
from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.pool import ActorPool
from raysim.engine.ray.session import draining, growth, machine, nodes
from tests.engine.scenarios import ROUNDS, loaded, outcome
from tests.engine.ray.deaths import GIVEN, Killing

pool_module.NODE_CHECK_S = 0.0
head_cpus = int(sys.argv[2])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head_cpus, "include_dashboard": False})
leaving = cluster.add_node(num_cpus=2)
ray.init(address=cluster.address, logging_level="ERROR")
assert growth() is None  # a cluster without an autoscaler
requests = [ResourceRequest(tuple(range(8)), 2, None, 1.0, 0.0)]
pool = ActorPool(lay_out(requests, machine()), replan=lambda found: lay_out(requests, found))
backend = RayBackend(pool)
trained, train = [], backend.train
backend.train = lambda t, *args: (trained.append(t), train(t, *args))[1]
# No checkpoint is due before the last round, so leaving the node must write one.
checkpoints = CheckpointManager(CheckpointStore(open_storage(Path(sys.argv[1]))), 100, ROUNDS)

def drain(backend):
    if len(trained) == 2:
        assert {worker.node for worker in pool.clients} >= {leaving.node_id}
        deadline_ms = int(time.time() * 1000) + 3_600_000
        accepted, why = GcsClient(address=cluster.address).drain_node(leaving.node_id, 2, "test", deadline_ms)
        assert accepted, why
        assert set(draining()) == {leaving.node_id} and leaving.node_id not in [node.id for node in nodes()]
    elif head_cpus:
        assert {worker.node for worker in pool.workers} == {pool.driver_node}
        cluster.remove_node(leaving, allow_graceful=False)

killing = Killing(backend, [2, 3], drain)
notes, progress = [], Progress()
with show_logs(notes.append):
    found = outcome(loaded(GIVEN), backend, checkpoints, progress)
assert found == outcome(loaded(GIVEN), InProcessBackend())
assert not killing.left and trained == [1, 2, 3, 4] and progress.restarts == 0, (killing.left, trained)
print(*notes, sep=" | ")
backend.close()
ray.shutdown()
cluster.shutdown()
"""


def run(folder: Path, head_cpus: int) -> str:
    code = [sys.executable, "-c", DRAINED, str(folder), str(head_cpus)]
    done = subprocess.run(code, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def test_a_run_leaves_a_drained_node_before_it_dies(tmp_path: Path) -> None:
    notes = run(tmp_path, head_cpus=1)
    assert " is being drained: its " in notes
    assert "only 1 of 2 actors fit on the nodes that are available now; the run continues with these" in notes
    assert "going back" not in notes


def test_a_run_stays_if_its_actors_fit_nowhere_else(tmp_path: Path) -> None:
    notes = run(tmp_path, head_cpus=0)
    assert notes.count("is being drained, but its actors fit on no other node: they stay") == 1
    assert "going back" not in notes
