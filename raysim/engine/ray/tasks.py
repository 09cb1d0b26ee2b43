"""Whole runs as Ray tasks, several at a time: the cells of a sweep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.engine.policies.placement import Node, share_of_a_gpu
from raysim.engine.ray import local_cluster, session
from raysim.engine.stop import Stop

POLL_S = 0.5

Function = Callable[[Any, Stop, Callable[[int], None]], Any]
"""(task, stop, report) -> result: works on a task, ends early if `stop.requested`, and reports its progress."""


class Ended(NamedTuple):
    """A task that ended."""

    name: str
    result: Any  # None: its process died, or it was stopped before it began
    death: str = ""  # how its process died
    final: bool = False  # whether the task would most likely kill another process too


class Tasks:
    """Tasks on the Ray at RAY_ADDRESS, or on a local Ray that ends with the context.

    limit: the most tasks at the same time; None: one per CPU of the nodes that are alive.

    Attributes:
        expected: number of tasks to come, if known. Few tasks get large shares of a GPU, since Ray puts small shares on
            one GPU, even if others are idle.
    """

    def __init__(self, function: Function, limit: int | None) -> None:
        self.limit = limit
        self.expected: int | None = None
        self.running: dict[str, int] = {}  # task -> its progress; -1: unknown
        self._names: dict[Any, str] = {}  # reference to a result -> task
        self._function = function
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Tasks:
        if session.connect(self.limit):
            self._cleanup.callback(local_cluster.stop, remove_logs=True)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = ray.remote(_Board).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        self._board = board.remote()
        self._cleanup.callback(ray.kill, self._board)
        return self

    def __exit__(self, *error: object) -> None:
        with self._cleanup:
            for answer in self._names:
                ray.cancel(answer, force=True)

    @property
    def several_nodes(self) -> bool:
        """Whether tasks may run on nodes that do not see this machine's disk."""
        return len(session.nodes()) > 1

    @property
    def has_room(self) -> bool:
        """Whether another task can be started."""
        cpus = sum(node.cpus for node in session.nodes())
        return len(self.running) < (self.limit or max(1, int(cpus)))

    def start(self, name: str, task: Any) -> None:
        """Start a task; if no CPU is free, Ray starts it later."""
        share = gpu_share(session.nodes(), self.limit, self.expected)
        work = ray.remote(_work).options(num_cpus=1, num_gpus=share, max_retries=0, scheduling_strategy="SPREAD")
        answer = work.remote(self._function, name, task, self._board)
        self._names[answer] = name
        self.running[name] = -1

    def wait(self) -> list[Ended]:
        """Wait until a task ends, at most for `POLL_S`, and return the tasks that ended."""
        if not self._names:
            return []
        ready, _ = ray.wait(list(self._names), timeout=POLL_S)
        with contextlib.suppress(ray.exceptions.RayError):  # Ray restarts a board that died
            done = ray.get(self._board.read.remote(), timeout=POLL_S)
            self.running = {name: done.get(name, -1) for name in self.running}
        return [self._end(answer) for answer in ready]

    def _end(self, answer: Any) -> Ended:
        name = self._names.pop(answer)
        del self.running[name]
        try:
            return Ended(name, ray.get(answer))
        except ray.exceptions.RayError as error:
            return Ended(name, None, _death(error), isinstance(error, ray.exceptions.OutOfMemoryError))

    def end(self) -> None:
        """Make every task end early: Ray raises in its process what Ctrl-C raises."""
        for answer in self._names:
            ray.cancel(answer)


def gpu_share(nodes: Sequence[Node], *most: int | None) -> float:
    """Return the share of a GPU of each task, so that the tasks of a node use all its GPUs.

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
    board.report.remote(name, -1)
    return function(task, Stop(quiet=True), lambda done: board.report.remote(name, done))


def _death(error: ray.exceptions.RayError) -> str:
    """How the process of a task died, in words."""
    text = str(error).strip()
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        why = "its node ran out of memory; run fewer cells at a time (`--parallel`)"
    elif "node has died" in text or "node was terminated" in text:
        return "its node died"
    else:
        why = text.splitlines()[0]
    return f"its worker process died ({why})"
