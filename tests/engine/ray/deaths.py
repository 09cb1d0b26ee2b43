"""How tests of the Ray backend kill actors, and when."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.pool import ActorRecord

GIVEN = "algorithm={name: fedgh}"
"""The `--set` of the runs in which actors die."""


class Killing:
    """Calls `kill` in each of these rounds once the actors have their work lists."""

    def __init__(self, backend: RayBackend, rounds: Sequence[int], kill: Callable[[RayBackend], None]) -> None:
        self.backend, self.left, self.kill = backend, list(rounds), kill
        self.collect = backend._collect
        backend._collect = self  # type: ignore[method-assign, assignment]

    def __call__(self, streams: Any, where: str, progress: Any) -> Any:
        if where in [f"round {t}" for t in self.left]:
            self.left.remove(int(where.split()[1]))
            self.kill(self.backend)
        return self.collect(streams, where, progress)


def kill(worker: ActorRecord) -> None:
    import ray

    # Ray knows the pid; the actor itself is busy.
    from ray._private.state import actors

    pid = actors()[worker.actor._actor_id.hex()]["Pid"]
    assert pid > 0
    os.kill(pid, signal.SIGKILL)
    assert ray.is_initialized()


def sleep(seconds: float) -> None:
    """A Python function, as Ray does not accept a builtin as a task."""
    time.sleep(seconds)
