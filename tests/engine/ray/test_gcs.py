"""The driver notices the death of Ray's GCS before it asks a question that only the GCS answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray

from raysim.common.errors import RunError
from raysim.engine.ray import calls, local_cluster
from raysim.engine.ray.actors import Location
from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.calls import ActorCalls, GcsDiedError
from raysim.engine.ray.pool import ActorPool, ActorRecord
from raysim.engine.records import MemoryReport
from raysim.engine.workers.state_files import Handle


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listening socket in the place of the GCS; closing it is the GCS's death."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        context = SimpleNamespace(gcs_address=f"127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        yield listening


def no_nodes() -> list[object]:
    raise AssertionError("the driver asks the GCS for nodes")


def test_a_run_on_its_own_ray_ends_at_once(gcs: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", no_nodes)
    monkeypatch.setattr(local_cluster, "is_running", lambda: True)
    calls = ActorCalls(lambda actor_id: None)
    pool = ActorPool.__new__(ActorPool)
    pool.calls = calls
    calls.wait_for_gcs("round 1")
    gcs.close()
    for ask in (
        pool._place,  # first: it probes the GCS at once, the next two every POLL_S
        lambda: calls.get([], "round 2"),
        lambda: calls.wait_any([], "round 2"),
        RayBackend(pool).recover,
    ):
        with pytest.raises(GcsDiedError, match=r": Ray's GCS \(gcs_server\) has died"):
            ask()


def test_a_call_on_a_cluster_waits_for_a_gcs_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(calls, "gcs_answers", lambda: next(answers))
    monkeypatch.setattr(calls, "POLL_S", 0.0)
    ActorCalls(lambda actor_id: None).wait_for_gcs("recovering")
    assert not list(answers)


@pytest.mark.ray
def test_a_ray_that_does_not_start_is_one_sentence(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nMore of it.")

    monkeypatch.setattr(ray, "init", dies)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    before = dict(os.environ)
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    running = psutil.process_iter(["cmdline"])  # leaves out a process that ends meanwhile
    agents = [one for one in running if one.pid in children and "agent" in "".join(one.info["cmdline"] or [])]
    with pytest.raises(RunError) as caught:
        local_cluster.start()
    assert "The current node timed out during startup.; " in str(caught.value)
    assert "backend=in_process" in str(caught.value)
    assert dict(os.environ) == before
    assert not local_cluster.is_running()
    assert agents  # of the tests' own Ray, which ends without them
    assert all(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in agents)


@pytest.mark.parametrize(
    ("longest", "idle", "expected"),
    [
        ({"round ": 5.0}, ["an id"], [35.0, 140.0, 560.0]),
        ({}, ["an id"], [60.0, 240.0]),
        ({"round ": 190.0}, [], []),  # the actor is at work all the time
    ],
)
def test_a_stall_is_reported_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    longest: dict[str, float],
    idle: list[str],
    expected: list[float],
) -> None:
    seconds = iter(range(1000))
    looked: list[Sequence[str]] = []

    def idle_of(ids: Sequence[str]) -> list[str]:
        looked.append(ids)
        return idle

    waiting = ActorCalls(lambda actor_id: None, idle_of=idle_of)
    waiting._longest_s = dict(longest)
    monkeypatch.setattr(waiting, "_check_gcs", lambda context: True)
    monkeypatch.setattr(waiting, "_awaited", lambda pending: ["an id"])
    monkeypatch.setattr(waiting, "_stall_message", lambda idle, context, waited_s: str(waited_s))
    monkeypatch.setattr(calls, "perf_counter", lambda: float(next(seconds)))
    answers = iter([(False, None)] * 900 + [(True, 7)])
    assert waiting._wait(lambda: next(answers), [], "round 3") == 7
    assert [float(text) for text in caplog.messages] == expected
    assert looked == [["an id"]] * (len(expected) or 4)  # at 220, 330, 495, 743 s
    assert waiting._longest_s == {"round ": 901.0}


def test_memory_usage_does_not_ask_the_gcs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", no_nodes)
    pool = ActorPool.__new__(ActorPool)
    pool.calls = ActorCalls(lambda actor_id: None)
    pool.clients = [
        ActorRecord(None, location=Location("a", "10.0.0.1", 1), usage=MemoryReport(10.0, 3.0)),
        ActorRecord(None, location=Location("a", "10.0.0.1", 2), usage=MemoryReport(20.0, 4.0)),
    ]
    pool.server = ActorRecord(None)
    found = RayBackend(pool).memory()
    assert (found.resident_mb > 30.0, found.gpu_peak_mb) == (True, 4.0)


def test_a_stall_fetches_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broadcast is large and on another node: whether it exists is asked, and it is not fetched for that."""
    asked: list[Any] = []

    def wait(refs: Sequence[Any], *, fetch_local: bool = True, **options: Any) -> tuple[Sequence[Any], list[Any]]:
        asked.append(fetch_local)
        return refs, []

    monkeypatch.setattr(ray, "wait", wait)
    waiting = ActorCalls(lambda actor_id: None)
    waiting.inputs = ["broadcast"]
    assert waiting._awaited(["answer"]) == []
    assert asked == [False, False]


def test_only_actors_of_one_group_and_node_share_files() -> None:
    def actor(pid: int, group: int, node: str) -> ActorRecord:
        return ActorRecord(None, group, location=Location(node, "", pid, (Handle("", 0, pid),)))

    pool = ActorPool.__new__(ActorPool)
    pool.clients = [actor(0, 0, "a"), actor(1, 0, "a"), actor(2, 1, "a"), actor(3, 0, "b")]
    assert [pool._files(one)[0].inode for one in pool.clients] == [0, 0, 2, 3]
    assert pool._files(actor(4, 1, "b"))[0].inode == 4
