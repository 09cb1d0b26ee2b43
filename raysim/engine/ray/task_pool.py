"""Worker processes that are reused for whole runs: Ray actors that call a function for one task after another.

`ray.util.ActorPool` is not enough: it starts no actors, does not report which task was lost when an actor dies, and
gives no access to busy actors, which here report progress and can be stopped early.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray

from raysim.engine.policies.placement import share_of_a_gpu
from raysim.engine.ray import local_cluster, session
from raysim.engine.stop import Stop

POLL_S = 0.5

START_S = 15.0
"""How long a worker on a free CPU takes to start on a busy machine, in seconds."""

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
    final: bool = False  # whether the task would most likely kill another worker too


@dataclass
class _Worker:
    actor: Any
    name: str | None = None  # name of its task; None: idle
    answer: Any = None
    done: int = -1
    asked: Any = None  # pending answer with its progress
    has_cpu: bool = False  # whether it has answered, so that its process runs
    began_s: float = field(default_factory=time.monotonic)
    gpus: float = 0.0  # its share of a GPU


@dataclass
class TaskPool:
    """Workers on the connected Ray. They start when needed, and dead workers are replaced.

    limit: greatest number of workers; None: one per CPU of the nodes that are alive. expected: number of tasks to come,
    if known: few workers get large shares of a GPU, since Ray puts small shares on one GPU, even if others are idle.
    """

    function: Function
    limit: int | None = None
    expected: int | None = None
    _workers: list[_Worker] = field(default_factory=list)
    _cpus: int = field(default_factory=lambda: _alive_cpus())

    @property
    def has_room(self) -> bool:
        """Whether another task can be started."""
        return len(self.running) < (self.limit or max(1, self._cpus))

    @property
    def running(self) -> list[tuple[str, int]]:
        """(task, its progress) of every busy worker; -1: progress unknown."""
        return [(one.name, one.done) for one in self._workers if one.name is not None]

    def start(self, name: str, task: Any) -> None:
        """Give a task to an idle worker, or to a new one."""
        share = self._gpu_share()
        for idle in [one for one in self._workers if one.name is None and one.gpus > share]:
            self._release(idle)  # the workers of this share would not all fit beside it
        worker = next((one for one in self._workers if one.name is None), None)
        if worker is None:
            # Two threads: one works, one answers. SPREAD: distribute over the nodes.
            options = {"num_cpus": 1, "num_gpus": share, "max_concurrency": 2}
            actor = ray.remote(TaskWorker).options(**options, scheduling_strategy="SPREAD").remote(self.function)
            worker = _Worker(actor, gpus=share)
            self._workers.append(worker)
        worker.name, worker.done, worker.asked = name, -1, None
        worker.answer = worker.actor.run.remote(task)

    def _gpu_share(self) -> float:
        """The share of a GPU for each worker, so that Ray distributes the workers over all GPUs of a node.

        0 if there are nodes without GPUs, which would get no workers.
        """
        found = [node for node in session.nodes() if node.cpus]
        if not found or not all(node.gpus for node in found):
            return 0.0
        cpus = [max(1, int(node.cpus)) for node in found]
        workers = min(one for one in (self.limit, self.expected, sum(cpus)) if one)
        # SPREAD gives the same number of workers to all nodes, except that small ones get no more than they have CPUs.
        most = next(n for n in itertools.count(1) if sum(min(one, n) for one in cpus) >= workers)
        return min(share_of_a_gpu(min(one, most), node.gpus) for one, node in zip(cpus, found, strict=True))

    def wait(self) -> list[Ended]:
        """Wait until a task ends, at most for `POLL_S`, and return the tasks that ended."""
        busy = {one.answer: one for one in self._workers if one.name is not None}
        if busy:
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=POLL_S)
        else:
            ready = []
            time.sleep(POLL_S)  # the caller waits for something else
        ended = [self._end(busy[reference]) for reference in ready]
        self._cpus = _alive_cpus()
        self._ask()
        # Other idle workers may be on the same dead node, or hold the CPU that a worker waits for.
        if any(one.result is None for one in ended) or self._waits_for_cpu:
            for worker in [one for one in self._workers if one.name is None]:
                self._release(worker)
        return ended

    @property
    def _waits_for_cpu(self) -> bool:
        """Whether a worker with a task has not started for longer than that takes."""
        latest_s = time.monotonic() - START_S
        return any(one.name is not None and not one.has_cpu and one.began_s < latest_s for one in self._workers)

    def _end(self, worker: _Worker) -> Ended:
        """The result of a worker that has answered. A worker that died is removed."""
        name, worker.name = worker.name, None
        # Not kept: a result may refer to a whole run folder in the object store.
        answer, worker.answer = worker.answer, None
        assert name is not None
        try:
            return Ended(name, ray.get(answer))
        except ray.exceptions.RayError as error:
            self._release(worker)  # one that only cannot be reached may still run
            return Ended(name, None, _death(error), isinstance(error, ray.exceptions.OutOfMemoryError))

    def _release(self, worker: _Worker) -> None:
        ray.kill(worker.actor)
        self._workers.remove(worker)

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
                    worker.has_cpu = True
                worker.asked = None
            if worker.asked is None and worker.name is not None:
                worker.asked = worker.actor.progress.remote()


def _death(error: ray.exceptions.RayError) -> str:
    """How a worker died, in words."""
    text = str(error).strip()
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        why = "its node ran out of memory; run fewer cells at a time (`--parallel`)"
    elif isinstance(error, ray.exceptions.ActorUnavailableError):
        why = "it cannot be reached"  # often the first error when a node dies
    elif "node has died" in text or "node was terminated" in text:
        return "its node died"
    else:
        why = text.splitlines()[0]
    return f"its worker process died ({why})"


def _alive_cpus() -> int:
    return int(sum(node.cpus for node in session.nodes()))


@contextlib.contextmanager
def task_pool(function: Function, size: int | None) -> Iterator[TaskPool]:
    """Yield a pool on the Ray at RAY_ADDRESS, or on a local Ray that ends with the block.

    size: greatest number of workers; default: one per CPU, also of nodes that join or leave later.
    """
    started = session.connect(size)
    try:
        with contextlib.closing(TaskPool(function, size)) as pool:
            yield pool
    finally:
        if started:
            local_cluster.stop(remove_logs=True)
