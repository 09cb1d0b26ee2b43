"""The actors of the Ray backend, each a process: client actors, which train, and the server actor.

This module does not import torch, which costs a process 4 s and 250 MB, so that actors without work stay small.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import ray

from raysim.common.memory import return_freed_memory
from raysim.engine.workers.state_files import Handles, StateFiles, StateLimits

if TYPE_CHECKING:
    from raysim.core.algorithm import ClientId
    from raysim.engine.checkpoint.storage import Storage
    from raysim.engine.plan import Plan
    from raysim.engine.policies.evaluations import Coverage
    from raysim.engine.policies.placement import Group
    from raysim.engine.records import (
        Broadcast,
        CheckpointFile,
        ClientEvaluation,
        ClientFailure,
        ClientReport,
        ClientState,
        MemoryReport,
        ServerReport,
    )
    from raysim.engine.workers.client import ClientWorker
    from raysim.engine.workers.server import ServerWorker

STREAM_S = 1.0
"""Seconds between the results that an actor yields from its work list, so that users see progress."""

TRIM_EVERY_S = 5.0
"""Seconds between returns of freed memory to the system, because allocating the memory again costs about 10 ms."""


def private_mb() -> float:
    """Return the resident memory of this process in MiB, without the object store, which is shared."""
    info = psutil.Process().memory_info()
    return (info.rss - getattr(info, "shared", 0)) / 2**20


def keep_freed_memory() -> None:
    """Make glibc reuse freed memory, instead of returning it to the system after every training step.

    A step frees its gradients and activations and the next one allocates them again. Each new page of 4 KiB costs a
    page fault: 3,000 faults and a fifth of the time of a CNN-1 step on a CPU. Call this in actors only, not in a user's
    process. Without glibc it does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
        libc.mallopt(trim_threshold, 1 << 30)
        if not libc.mallopt(mmap_threshold, 1 << 28):
            libc.mallopt(mmap_threshold, 1 << 25)  # the maximum that older versions accept


@functools.cache  # only once, because a later call would also exempt objects of an earlier worker
def freeze_imports() -> None:
    """Exempt imported modules from garbage collection, which would visit torch's 200,000 objects, 0.2 s each time.

    All objects of the process are exempted. Call this in actors only, and before they create a worker.
    """
    gc.freeze()


class Location(NamedTuple):
    """The location of an actor's process."""

    node: str  # id of the node in Ray
    address: str  # address of the node
    pid: int
    files: Handles = ()  # handles of the files for clients' states


def location() -> Location:
    """Return the location of this process."""
    return Location(str(ray.get_runtime_context().get_node_id()), ray.util.get_node_ip_address(), os.getpid())


class WorkReport(NamedTuple):
    """The part of a `WorkResult` that the driver fetches."""

    reports: Mapping[ClientId, ClientReport | ClientFailure]
    memory: MemoryReport  # memory of the actor's process


class WorkResult(NamedTuple):
    """The result of some clients of a work list.

    Each field is a separate object in Ray's object store, in this order: the driver fetches the report and passes the
    reference to the uploads to the server actor.
    """

    uploads: Any  # in the actor: client -> packed upload; in the driver: a reference to it
    report: Any  # in the actor: a `WorkReport`; in the driver: a reference to it


class ClientActor:
    """An actor with a `ClientWorker`, which it creates when it is first used."""

    _worker: ClientWorker | None = None
    inputs: Sequence[Any] = ()  # references to the plan and the samples
    files: StateFiles  # the clients' states
    gpu_share: float = 0.0
    trimmed_s: float = 0.0  # perf_counter() at the last return of freed memory

    def pid(self) -> int:
        """Return the id of this process. The answer shows that the actor has started."""
        return os.getpid()

    def preload(self) -> None:
        """Import the modules for training early, while the driver still reads its data."""
        import raysim.engine.workers.client  # noqa: F401

    def setup(self, inputs: Sequence[Any], gpu_share: float, limits: StateLimits) -> Location:
        """Reset to the state before round 1. inputs: references to the plan and the samples."""
        if hasattr(self, "files"):
            self.files.close()
        self._worker, self.inputs, self.gpu_share, self.files = None, inputs, gpu_share, StateFiles(limits)
        return self._location()

    def join(self, files: Handles) -> Location:
        """Share the state files of another actor on this node, if they can be opened."""
        self.files.join(files)
        return self._location()

    def ready(self) -> None:
        """Create the worker now."""
        _ = self.worker

    @property
    def worker(self) -> ClientWorker:
        """The worker, created at its first use, because an actor without a worker takes a fifth of the memory."""
        if self._worker is None:
            keep_freed_memory()
            from raysim.core import accelerator
            from raysim.engine.workers.client import ClientWorker

            device = accelerator.available() if self.gpu_share else None
            if device is not None:
                accelerator.use_deterministic_kernels()
                if self.gpu_share < 1:
                    accelerator.limit_memory(device, self.gpu_share)
            freeze_imports()  # exempts objects that exist before the worker, because a recovery replaces the worker
            plan, raw_M = ray.get(list(self.inputs))
            self._worker = ClientWorker(plan, raw_M, device or "cpu", self.files)
        return self._worker

    def register(self, ids: Sequence[ClientId]) -> dict[ClientId, Any]:
        """See `ClientTrainer.register`."""
        return self.worker.training.register(ids)

    def train(self, *work: Any) -> WorkResult:
        """Train the clients of a work list; see `_train` for the arguments."""
        (result,) = self._train(math.inf, *work)
        return result

    def train_streaming(self, *work: Any) -> Iterator[Any]:
        """Train as `train` does, but yield the fields of a `WorkResult` every second, so that users see progress."""
        for result in self._train(STREAM_S, *work):
            yield result.uploads
            yield result.report
            del result  # a remaining reference would keep the uploads in memory until the next result

    def _train(
        self,
        stream_s: float,
        t: int,
        groups: Sequence[Group],
        evaluate_before: Coverage | None,
        skip: Collection[ClientId],
        broadcast: Broadcast,
        *moved: Mapping[ClientId, ClientState],
    ) -> Iterator[WorkResult]:
        """Train these groups in round `t`.

        stream_s: seconds after which the results so far are yielded.
        moved: the state of clients that another actor trained before.
        """
        for clients in moved:
            self.worker.adopt(clients)
        uploads: dict[ClientId, Any] = {}
        reports: dict[ClientId, ClientReport | ClientFailure] = {}
        left, since = sum(map(len, groups)), perf_counter()
        for k, up, report in self.worker.training.train(t, groups, broadcast, evaluate_before, skip):
            uploads[k], reports[k] = up, report
            left -= 1
            if perf_counter() - since > stream_s and left:
                yield WorkResult(uploads, WorkReport(reports, self._memory()))
                uploads, reports, since = {}, {}, perf_counter()
        yield WorkResult(uploads, WorkReport(reports, self._memory()))
        if perf_counter() - self.trimmed_s > TRIM_EVERY_S:
            return_freed_memory()
            self.trimmed_s = perf_counter()

    def discard(self, ids: Collection[ClientId]) -> None:
        """See `ClientTrainer.discard`."""
        self.worker.training.discard(ids)

    def evaluate(self, groups: Sequence[Group], coverage: Coverage) -> dict[ClientId, ClientEvaluation]:
        """See `ClientTester.evaluate`."""
        return self.worker.evaluation.evaluate(groups, coverage)

    def evaluate_current(
        self, t: int, ids: Sequence[ClientId], broadcast: Broadcast
    ) -> dict[ClientId, ClientEvaluation | ClientFailure]:
        """See `ClientTrainer.evaluate_current`."""
        return self.worker.training.evaluate_current(t, ids, broadcast)

    def release(self, ids: Sequence[ClientId], shared: bool) -> dict[ClientId, ClientState]:
        """See `ClientWorker.release`."""
        return self.worker.release(ids, shared)

    def save(self, t: int, storage: Storage) -> list[CheckpointFile]:
        """Write the states of clients that changed since the last checkpoint, as files of round `t`."""
        files = []
        for file, data in self.forward(t):
            storage.write(file.name, data)
            files.append(file)
        return files

    def forward(self, t: int) -> Iterator[tuple[CheckpointFile, bytes]]:
        """Yield the files of changed clients. The driver writes them if this node cannot reach the storage."""
        yield from self._worker.save(t) if self._worker else ()

    def restore(self, files: Sequence[CheckpointFile], storage: Storage) -> None:
        """Load the clients of these files. All clients then count as saved, including those in their initial state."""
        from raysim.engine.checkpoint.format import read_file

        for file in files:
            self.worker.restore(file, read_file(storage, file))
        if self._worker:
            self._worker.states.unsaved.clear()

    def fingerprints(self, ids: Sequence[ClientId]) -> dict[ClientId, dict[str, str]]:
        """See `ClientWorker.fingerprints`."""
        return self.worker.fingerprints(ids)

    def digests(self, ids: Sequence[ClientId]) -> dict[ClientId, str]:
        """See `ClientWorker.digests`."""
        return self.worker.digests(ids)

    def _memory(self) -> MemoryReport:
        from raysim.core import accelerator
        from raysim.engine.records import MemoryReport

        gpu_peak_mb = accelerator.peak_memory_mb(self.worker.device)
        return MemoryReport(private_mb() + self.files.memory_mb, gpu_peak_mb)

    def _location(self) -> Location:
        return location()._replace(files=self.files.handles)


class ServerActor:
    """A `ServerWorker` in a separate process."""

    worker: ServerWorker

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def preload(self) -> None:
        """Import the modules for the server early, while the driver still reads its data."""
        import raysim.engine.workers.server  # noqa: F401

    def setup(self, plan: Plan) -> Location:
        """Reset to the state before round 1."""
        from raysim.engine.workers.server import ServerWorker

        freeze_imports()
        self.worker = ServerWorker(plan)
        return location()

    def start(self, *registrations: Mapping[ClientId, Any]) -> None:
        """See `ServerWorker.start`."""
        self.worker.start(registrations)

    def send(self, t: int, cohort: Sequence[ClientId]) -> Broadcast:
        """See `ServerWorker.send`. Ray stores the result only once in the object store."""
        return self.worker.send(t, cohort)

    def current(self, t: int) -> Broadcast:
        """See `ServerWorker.current`."""
        return self.worker.current(t)

    def update(
        self, t: int, late: Collection[ClientId], *uploads: Mapping[ClientId, Any]
    ) -> tuple[ServerReport, MemoryReport]:
        """See `ServerWorker.update`."""
        from raysim.engine.records import MemoryReport

        return self.worker.update(t, uploads, late), MemoryReport(private_mb())

    def save(self, t: int, storage: Storage | None) -> tuple[CheckpointFile, bytes | None]:
        """Write the state after round `t` to the storage; if there is none, return the content of the file."""
        part, data = self.worker.save(t)
        if storage is None:
            return part, data
        storage.write(part.name, data)
        return part, None

    def restore(self, file: CheckpointFile, storage: Storage) -> None:
        """Load the state of this file."""
        from raysim.engine.checkpoint.format import read_file

        self.worker.restore(read_file(storage, file))

    def fingerprints(self) -> dict[str, str]:
        """See `ServerWorker.fingerprints`."""
        return self.worker.fingerprints()

    def digest(self) -> str:
        """See `ServerWorker.digest`."""
        return self.worker.digest()
