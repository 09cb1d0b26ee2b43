"""Calls to actors that take long, and a Ray that does not start; no test here waits for an actor."""

from __future__ import annotations

import os

import psutil
import pytest
import ray

from raysim.common.errors import RunError
from raysim.engine.ray import local_cluster
from raysim.engine.ray.actors import Location
from raysim.engine.ray.pool import ActorPool, ActorRecord
from raysim.engine.workers.state_files import Handle


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


def test_only_actors_of_one_group_and_node_share_files() -> None:
    def actor(pid: int, group: int, node: str) -> ActorRecord:
        return ActorRecord(None, group, location=Location(node, "", pid, (Handle("", 0, pid),)))

    pool = ActorPool.__new__(ActorPool)
    pool.clients = [actor(0, 0, "a"), actor(1, 0, "a"), actor(2, 1, "a"), actor(3, 0, "b")]
    assert [pool._files(one)[0].inode for one in pool.clients] == [0, 0, 2, 3]
    assert pool._files(actor(4, 1, "b"))[0].inode == 4
