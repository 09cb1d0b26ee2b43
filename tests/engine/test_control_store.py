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

from raysim.core.errors import RunError
from raysim.engine import ray_calls, ray_local
from raysim.engine.pressure import Pressure
from raysim.engine.ray_actors import Place, Usage
from raysim.engine.ray_backend import RayBackend
from raysim.engine.ray_calls import Calls
from raysim.engine.ray_crew import Crew, Member

GONE = r": Ray's control store \(gcs_server\) has died"


@pytest.fixture
def control_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """What this process takes for the control store of the Ray that it started; the connection is not what tells."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        node = SimpleNamespace(all_processes={"gcs_server": [SimpleNamespace(process=process)]})
        node.dead_processes = lambda: Node.dead_processes(node)
        monkeypatch.setattr(ray._private.worker, "_global_node", node)
        monkeypatch.setattr(ray_calls, "control_store_answers", lambda: True)
        yield process


def no_nodes() -> list[object]:
    raise AssertionError("the control store is asked for nodes")


def test_a_run_of_its_own_ray_ends_at_once(
    control_store: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "nodes", no_nodes)
    calls = Calls(lambda actor_id: None)
    crew = Crew.__new__(Crew)
    crew.calls, crew.joining, crew.replan, crew._looked_s = calls, [], lambda machine: pytest.fail("asked"), -1e9
    assert not ray_local.control_store_died()
    calls.await_control_store("round 1")
    control_store.kill()
    control_store.wait()
    assert ray_local.control_store_died()
    for ask in (
        lambda: calls.get([], "round 2"),
        lambda: calls.first([], "round 2"),
        lambda: calls.in_time([object()], "the commit of round 2"),
        crew._room,
        crew.take_in,
        RayBackend(crew).recover,
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
        ray_local.start()
    assert dict(os.environ) == before


def test_a_cluster_may_start_its_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(ray_calls, "control_store_answers", lambda: next(answers))
    monkeypatch.setattr(ray_calls, "LOOK_S", 0.0)
    Calls(lambda actor_id: None).await_control_store("going back")
    assert not list(answers)


def test_memory_is_looked_at_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", no_nodes)
    low, high = Pressure(1, 10), Pressure(9, 10)
    crew = Crew.__new__(Crew)
    crew.calls = Calls(lambda actor_id: None)
    crew.hosts = [
        Member(None, place=Place("a", "10.0.0.1", 1), usage=Usage(0.0, 0.0, (low, None))),
        Member(None, place=Place("a", "10.0.0.1", 2), usage=Usage(0.0, 0.0, (high, None))),
        Member(None, place=Place("b", "10.0.0.2", 3), usage=Usage(0.0, 0.0, (low, None))),
    ]
    crew.server = Member(None)
    assert RayBackend(crew).pressure() == {"10.0.0.1": (high, None), "10.0.0.2": (low, None)}
