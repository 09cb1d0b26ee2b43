"""Calls to actors that take long, and a Ray that does not start; no test here waits for an actor."""

from __future__ import annotations

import os

import psutil
import pytest
import ray

from raysim.common.errors import RunError
from raysim.engine.ray import local_cluster


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
