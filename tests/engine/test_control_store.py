"""The death of Ray's control store is seen before anything is asked that only it can answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import ray
from ray._private.node import Node

from raysim.common.errors import RunError
from raysim.engine.memory import MemoryUsage
from raysim.engine.ray import calls, local_cluster
from raysim.engine.ray.actors import Place, ProcessMemory
from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.calls import ActorCalls
from raysim.engine.ray.pool import ActorPool, Worker

GONE = r": Ray's control store \(gcs_server\) has died"


@pytest.fixture
def control_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """What this process takes for the control store of the Ray that it started; the connection is not what tells."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        node = SimpleNamespace(all_processes={"gcs_server": [SimpleNamespace(process=process)]})
        node.dead_processes = lambda: Node.dead_processes(node)
        monkeypatch.setattr(ray._private.worker, "_global_node", node)
        monkeypatch.setattr(calls, "gcs_answers", lambda: True)
        yield process


def no_nodes() -> list[object]:
    raise AssertionError("the control store is asked for nodes")


def test_a_run_of_its_own_ray_ends_at_once(
    control_store: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "nodes", no_nodes)
    calls = ActorCalls(lambda actor_id: None)
    pool = ActorPool.__new__(ActorPool)
    pool.calls, pool.starting, pool.replan, pool._looked_s = calls, [], lambda machine: pytest.fail("asked"), -1e9
    assert not local_cluster.gcs_died()
    calls.wait_for_gcs("round 1")
    control_store.kill()
    control_store.wait()
    assert local_cluster.gcs_died()
    for ask in (
        lambda: calls.get([], "round 2"),
        lambda: calls.first([], "round 2"),
        lambda: calls.within_deadline([object()], "the checkpoint of round 2"),
        pool._room,
        pool.add_new_actors,
        RayBackend(pool).recover,
    ):
        with pytest.raises(RunError, match=GONE):
            ask()


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nMore of it.")

    monkeypatch.setattr(ray, "init", dies)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    before = dict(os.environ)
    with pytest.raises(RunError, match=r"^Ray did not start on this machine: The current node timed out .*startup\.$"):
        local_cluster.start()
    assert dict(os.environ) == before


def test_a_cluster_may_start_its_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(calls, "gcs_answers", lambda: next(answers))
    monkeypatch.setattr(calls, "LOOK_S", 0.0)
    ActorCalls(lambda actor_id: None).wait_for_gcs("going back")
    assert not list(answers)


def test_memory_is_looked_at_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", no_nodes)
    low, high = MemoryUsage(1, 10), MemoryUsage(9, 10)
    pool = ActorPool.__new__(ActorPool)
    pool.calls = ActorCalls(lambda actor_id: None)
    pool.clients = [
        Worker(None, place=Place("a", "10.0.0.1", 1), usage=ProcessMemory(0.0, 0.0, (low, None))),
        Worker(None, place=Place("a", "10.0.0.1", 2), usage=ProcessMemory(0.0, 0.0, (high, None))),
        Worker(None, place=Place("b", "10.0.0.2", 3), usage=ProcessMemory(0.0, 0.0, (low, None))),
    ]
    pool.server = Worker(None)
    assert RayBackend(pool).memory_usage() == {"10.0.0.1": (high, None), "10.0.0.2": (low, None)}
