"""Worker processes that are reused for whole runs: Ray actors that call a function for one task after another.

`ray.util.ActorPool` is not enough: it starts no actors, does not report which task was lost when an actor dies, and
gives no access to busy actors, which here report progress and can be stopped early.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray

from raysim.engine.ray import local_cluster, session
from raysim.engine.stop import Stop

POLL_S = 0.5

Function = Callable[[Any, Stop, Callable[[int], None]], Any]
"""(task, stop, report) -> result: works on a task, ends early if `stop.requested`, and reports its progress."""


class TaskWorker:
    """Works on tasks. `run` is busy for as long as a task takes; the other methods answer at any time."""

    def __init__(self, function: Function) -> None:
        self.function, self.stop, self.done = function, Stop(), -1

    def run(self, task: Any) -> Any:
        """Return the function's result for a task."""
        self.done = -1
        return self.function(task, self.stop, self._report)

    def progress(self) -> int:
        """Return the last progress that the function reported; -1: none."""
        return self.done

    def end(self) -> None:
        """Make this task, and any later task, end early."""
        self.stop.requested = True

    def _report(self, done: int) -> None:
        self.done = done


class Ended(NamedTuple):
    """A task that ended."""

    name: str
    result: Any  # None: its worker died
    death: str = ""  # how the worker died


@dataclass
class _Worker:
    actor: Any
    name: str | None = None  # name of its task; None: idle
    answer: Any = None
    done: int = -1
    asked: Any = None  # pending answer with its progress


@dataclass
class TaskPool:
    """Workers on the connected Ray. They start when needed, and dead workers are replaced."""

    function: Function
    size: int
    _workers: list[_Worker] = field(default_factory=list)

    @property
    def has_room(self) -> bool:
        """Whether another task can be started."""
        return len(self.running) < self.size

    @property
    def running(self) -> list[tuple[str, int]]:
        """(task, its progress) of every busy worker; -1: progress unknown."""
        return [(one.name, one.done) for one in self._workers if one.name is not None]

    def start(self, name: str, task: Any) -> None:
        """Give a task to an idle worker, or to a new one."""
        worker = next((one for one in self._workers if one.name is None), None)
        if worker is None:
            # Two threads: one works, one answers. SPREAD: distribute over the nodes.
            options = {"num_cpus": 1, "max_concurrency": 2, "scheduling_strategy": "SPREAD"}
            worker = _Worker(ray.remote(TaskWorker).options(**options).remote(self.function))
            self._workers.append(worker)
        worker.name, worker.done, worker.asked = name, -1, None
        worker.answer = worker.actor.run.remote(task)

    def wait(self) -> list[Ended]:
        """Wait until a task ends, at most for `POLL_S`, and return the tasks that ended."""
        busy = {one.answer: one for one in self._workers if one.name is not None}
        ready, _ = ray.wait(list(busy), num_returns=1, timeout=POLL_S) if busy else ([], [])
        ended = []
        for reference in ready:
            worker = busy[reference]
            assert worker.name is not None
            try:
                ended.append(Ended(worker.name, ray.get(reference)))
            except ray.exceptions.RayError as error:
                memory = isinstance(error, ray.exceptions.OutOfMemoryError)
                why = (
                    "its node ran out of memory; run fewer cells at a time (`--parallel`)"
                    if memory
                    else str(error).strip().splitlines()[0]
                )
                ended.append(Ended(worker.name, None, f"its worker process died ({why})"))
                self._workers.remove(worker)
            worker.name = None
        self._ask()
        return ended

    def end(self) -> None:
        """Make every task end early."""
        for worker in self._workers:
            worker.actor.end.remote()

    def close(self) -> None:
        """End the workers and release their CPUs."""
        for worker in self._workers:
            ray.kill(worker.actor)

    def _ask(self) -> None:
        """Ask busy workers for their progress, and read earlier answers."""
        for worker in self._workers:
            if worker.asked is not None and ray.wait([worker.asked], timeout=0)[0]:
                with contextlib.suppress(ray.exceptions.RayError):  # `wait` notices the death of a worker
                    worker.done = ray.get(worker.asked)
                worker.asked = None
            if worker.asked is None and worker.name is not None:
                worker.asked = worker.actor.progress.remote()


@contextlib.contextmanager
def task_pool(function: Function, size: int | None) -> Iterator[TaskPool]:
    """Yield a pool on the Ray at RAY_ADDRESS, or on a local Ray that ends with the block.

    size: greatest number of workers; default: one per CPU.
    """
    started = session.connect(size)
    pool = TaskPool(function, size or max(1, int(sum(node.cpus for node in session.nodes()))))
    try:
        yield pool
    finally:
        pool.close()
        if started:
            local_cluster.stop(remove_logs=True)
