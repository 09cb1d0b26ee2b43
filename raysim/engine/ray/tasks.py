"""Whole runs as parallel Ray tasks, which are the cells of a sweep."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.engine.policies.placement import Node, share_of_a_gpu
from raysim.engine.ray import local_cluster, session
from raysim.engine.stop import Stop

POLL_S = 0.5

RETRIES = 5
"""Maximum number of times that Ray runs a task again after its process or node died."""

OOM_RETRIES = "RAY_task_oom_retries"
"""Environment variable with the maximum number of times that Ray runs a task again after it exceeded its node's memory.
Ray's default has no limit."""

Function = Callable[[Any, Stop, Callable[[int], None]], Any]
"""(task, stop, report) -> result. Works on a task, ends early if `stop.requested`, and reports progress by `report`.

Ray calls the function again if its process dies."""


class Tasks:
    """Tasks on the Ray of this process, on that at RAY_ADDRESS, or else on a local one.

    `connect` starts the local Ray, and `close` ends it.

    limit: the most tasks at the same time; None: one per CPU of the nodes that are alive.
    """

    def __init__(self, function: Function, limit: int | None) -> None:
        self.limit = limit
        self.running: dict[str, int] = {}  # task -> its reported progress; -1: unknown
        self._names: dict[Any, str] = {}  # reference to a result -> name of the task
        self._function = function
        self._cleanup = contextlib.ExitStack()
        self._board: Any = None

    def connect(self) -> None:
        """Connect to Ray, unless already connected."""
        if self._board is not None:
            return
        os.environ.setdefault(OOM_RETRIES, "0")
        if session.connect(self.limit):
            self._cleanup.callback(local_cluster.stop, remove_logs=True)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = ray.remote(_Board).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        self._board = board.remote()
        self._cleanup.callback(ray.kill, self._board)

    def close(self) -> None:
        """End all tasks, and the local Ray if one was started for them."""
        with self._cleanup:
            for answer in self._names:
                ray.cancel(answer, force=True)
        self._names, self._board = {}, None

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def several_nodes(self) -> bool:
        """Whether tasks may run on nodes without access to this machine's disk."""
        return len(session.nodes()) > 1

    @property
    def has_room(self) -> bool:
        """Whether another task can be started."""
        cpus = sum(node.cpus for node in session.nodes())
        return len(self.running) < (self.limit or max(1, int(cpus)))

    def start(self, name: str, task: Any, expected: int) -> None:
        """Start a task. If no CPU is free, Ray delays its start.

        expected: number of tasks. Few tasks get large shares of a GPU, since Ray puts small shares on one GPU, even if
        others are idle.
        """
        share = gpu_share(session.nodes(), self.limit, expected)
        work = ray.remote(_work).options(num_cpus=1, num_gpus=share, max_retries=RETRIES, scheduling_strategy="SPREAD")
        answer = work.remote(self._function, name, task, self._board)
        self._names[answer] = name
        self.running[name] = -1

    def wait(self) -> list[tuple[str, Any]]:
        """Wait at most `POLL_S` for a task to end; return the names and results of tasks that ended.

        Of a task whose process died too often, the result is how it died; of one that `end` ended, it may be empty.
        """
        ready, _ = ray.wait(list(self._names), timeout=POLL_S)
        with contextlib.suppress(ray.exceptions.RayError):  # if the actor with the progress died, Ray restarts it
            done = ray.get(self._board.read.remote(), timeout=POLL_S)
            self.running = {name: done.get(name, -1) for name in self.running}
        return [self._end(answer) for answer in ready]

    def _end(self, answer: Any) -> tuple[str, Any]:
        name = self._names.pop(answer)
        del self.running[name]
        try:
            return name, ray.get(answer)
        except ray.exceptions.TaskCancelledError:
            return name, ""
        except ray.exceptions.OutOfMemoryError:
            return name, "its node ran out of memory; run fewer cells at a time (`--parallel`)"
        except ray.exceptions.RayError as error:
            return name, f"its process or node died ({str(error).strip().splitlines()[0]})"

    def end(self) -> None:
        """Make every task end early, by the exception that Ctrl-C raises."""
        for answer in self._names:
            ray.cancel(answer)


def gpu_share(nodes: Sequence[Node], *most: int | None) -> float:
    """Return each task's share of a GPU, so that a node's tasks together use all its GPUs.

    0 if there are nodes without GPUs, which would get no tasks. most: limits of the number of tasks; None: no limit.
    """
    nodes = [node for node in nodes if node.cpus]
    if not nodes or not all(node.gpus for node in nodes):
        return 0.0
    limits = [one for one in most if one is not None]
    return min(share_of_a_gpu(min([max(1, int(node.cpus)), *limits]), node.gpus) for node in nodes)


class _Board:
    """An actor to which tasks report their progress."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}

    def report(self, name: str, done: int) -> None:
        self.done[name] = done

    def read(self) -> dict[str, int]:
        return self.done


def _work(function: Function, name: str, task: Any, board: Any) -> Any:
    """Run the function in a process of Ray."""
    # A script's background process ignores Ctrl-C, and so do the processes that it starts; `Tasks.end` needs it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    board.report.remote(name, -1)
    return function(task, Stop(quiet=True), lambda done: board.report.remote(name, done))
