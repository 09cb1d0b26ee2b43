"""The actors of the Ray backend: a host of clients, or the server, in a process of its own.

Nothing heavy is imported here: torch costs a process 4 s and 250 MB, which only those that have work should pay.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import ray

from raysim.engine.memory import MemoryUsage, gpu_memory, host_memory

if TYPE_CHECKING:
    from raysim.core.algorithm import ClientId
    from raysim.engine.checkpoint.format import Bytes, CheckpointFile
    from raysim.engine.checkpoint.storage import Storage
    from raysim.engine.checkpoint.writer import BackgroundWriter
    from raysim.engine.records import (
        Broadcast,
        ClientEvaluation,
        ClientFailure,
        ClientReport,
        ClientState,
        ServerReport,
    )
    from raysim.engine.spec import RunSpec
    from raysim.engine.workers.client import ClientWorker
    from raysim.engine.workers.server import ServerWorker

STREAM_S = 1.0
"""A work list longer than this hands over what it has, so that progress is visible."""

TRIM_EVERY_S = 5.0
"""How often an actor gives back what the largest of its models freed; asking for it again costs about 10 ms."""

LOOK_S = 2.0
"""How often it is looked how full the machine is."""


@dataclass(frozen=True)
class ProcessMemory:
    """Memory of one process, in MiB."""

    private_mb: float
    gpu_peak_mb: float = 0.0
    memory_usage: tuple[MemoryUsage, MemoryUsage | None] | None = (
        None  # of its machine and its GPU; None: not looked at now
    )


def private_mb() -> float:
    """Resident memory that this process shares with nobody, in MiB (the object store counts once, elsewhere)."""
    info = psutil.Process().memory_info()
    return (info.rss - getattr(info, "shared", 0)) / 2**20


def keep_freed_memory() -> None:
    """Ask glibc to reuse freed memory instead of giving it back to the system after every training step.

    A step frees and allocates its gradients and activations anew; each time the system hands out pages again costs a
    fault per 4 KiB: 3,000 faults and a fifth of the time of a CNN-1 step on a CPU. Only in processes of our
    own. Without glibc nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
        libc.mallopt(trim_threshold, 1 << 30)
        if not libc.mallopt(mmap_threshold, 1 << 28):
            libc.mallopt(mmap_threshold, 1 << 25)  # the most that older versions take


def return_freed_memory() -> None:
    """Let the system have the pages that nothing uses; each that is used again costs a page fault."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def leave_out_of_collections() -> None:
    """Exempt what was imported from garbage collection: walking torch's 200,000 objects takes 0.2 s each time.

    Only in processes of our own.
    """
    gc.collect()
    gc.freeze()


class Place(NamedTuple):
    """Where an actor is to be found."""

    node: str  # Ray's id of it
    machine: str  # its address
    pid: int


def place() -> Place:
    """Where this process is to be found."""
    return Place(str(ray.get_runtime_context().get_node_id()), ray.util.get_node_ip_address(), os.getpid())


class ClientActor:
    """A `ClientWorker` in a process of its own, made when it is first needed."""

    _worker: ClientWorker | None = None
    writer: BackgroundWriter  # since `_worker`
    inputs: Sequence[Any] = ()  # references to the world and the images
    gpu_share: float = 0.0
    trimmed_s: float = 0.0  # perf_counter() when freed memory was last given back
    looked_s: float = 0.0  # perf_counter() when it was last looked how full the machine is

    def pid(self) -> int:
        """This process; answering means that it is up."""
        return os.getpid()

    def preload(self) -> None:
        """Import what training needs, while the driver still reads its data."""
        import raysim.engine.workers.client  # noqa: F401

    def setup(self, inputs: Sequence[Any], gpu_share: float) -> Place:
        """Be as before round 1. what: references to the world and its images."""
        if self._worker:
            self.writer.wait()
        self._worker, self.inputs, self.gpu_share = None, inputs, gpu_share
        return place()

    def ready(self) -> None:
        """Make the host now."""
        _ = self.worker

    @property
    def worker(self) -> ClientWorker:
        """The clients. An actor of which nothing is asked stays a bare process, a fifth of the memory."""
        if self._worker is None:
            keep_freed_memory()
            import torch

            from raysim.engine.checkpoint.writer import BackgroundWriter
            from raysim.engine.workers.client import ClientWorker

            device = "cpu"
            if self.gpu_share and torch.cuda.is_available():
                device = "cuda"
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is not deterministic
                # Only here: it imports torch's compiler, 100 MB and seconds, and one thread of a CPU needs no asking.
                torch.use_deterministic_algorithms(True, warn_only=True)
                if self.gpu_share < 1:
                    torch.cuda.set_per_process_memory_fraction(self.gpu_share)
            spec, image_MHWC = ray.get(list(self.inputs))
            self._worker, self.writer = ClientWorker(spec, image_MHWC, device), BackgroundWriter()
            leave_out_of_collections()
        return self._worker

    def register(self, ids: Sequence[ClientId]) -> dict[ClientId, Any]:
        """See `ClientWorker.register`."""
        return self.worker.register(ids)

    def train(
        self,
        t: int,
        ids: Sequence[ClientId],
        evaluate: bool,
        without: Collection[ClientId],
        broadcast: Broadcast,
        *moved: Mapping[ClientId, ClientState],
    ) -> Iterator[Any]:
        """Round `t`: yields uploads {client: packed} and (turns, usage) by turns, about once a second."""
        for clients in moved:
            self.worker.adopt(clients)
        uploads: dict[ClientId, Any] = {}
        client_reports: dict[ClientId, ClientReport | ClientFailure] = {}
        since = perf_counter()
        for k, up, client_report in self.worker.train(t, ids, broadcast, evaluate, without):
            uploads[k], client_reports[k] = up, client_report
            if perf_counter() - since > STREAM_S and len(client_reports) < len(ids):
                yield uploads
                yield client_reports, self._usage()
                uploads, client_reports, since = {}, {}, perf_counter()
        yield uploads
        yield client_reports, self._usage()
        if perf_counter() - self.trimmed_s > TRIM_EVERY_S:
            return_freed_memory()
            self.trimmed_s = perf_counter()

    def train_all(
        self, *args: Any
    ) -> tuple[dict[ClientId, Any], tuple[dict[ClientId, ClientReport | ClientFailure], ProcessMemory]]:
        """As `train`, for a list so short that progress within it is not worth a stream: (uploads, (turns, usage))."""
        parts = list(self.train(*args))
        uploads = {k: up for part in parts[::2] for k, up in part.items()}
        client_reports = {k: client_report for part, _ in parts[1::2] for k, client_report in part.items()}
        return uploads, (client_reports, parts[-1][1])

    def evaluate(self, ids: Sequence[ClientId]) -> dict[ClientId, ClientEvaluation]:
        """See `ClientWorker.evaluate`."""
        return self.worker.evaluate(ids)

    def release(self, ids: Sequence[ClientId]) -> dict[ClientId, ClientState]:
        """See `ClientWorker.release`."""
        return self.worker.release(ids)

    def adopt(self, moved: Mapping[ClientId, ClientState]) -> None:
        """See `ClientWorker.adopt`."""
        self.worker.adopt(moved)

    def save(self, t: int, storage: Storage) -> None:
        """Begin to write the clients that changed, as they are after round `t`; `saved` tells when that is done."""
        for part, data in self.forward(t):
            self.writer.write(t, storage, part, data)

    def saved(self, t: int) -> list[CheckpointFile]:
        """The files that `save` began to write, once they are there."""
        return self.writer.written(t) if self._worker else []

    def forward(self, t: int) -> Iterator[tuple[CheckpointFile, Bytes]]:
        """The files of the clients that changed, where this machine does not reach the store."""
        yield from self.worker.save(t) if self._worker else ()

    def forward_all(self, t: int) -> list[tuple[CheckpointFile, Bytes]]:
        """As `forward`, without a stream."""
        return list(self.forward(t))

    def fingerprints(self, ids: Sequence[ClientId]) -> dict[ClientId, dict[str, str]]:
        """See `ClientWorker.fingerprints`."""
        return self.worker.fingerprints(ids)

    def mark_saved(self) -> None:
        """What came from a checkpoint need not be saved again, nor what joined."""
        if self._worker:
            self._worker.unsaved.clear()

    def digests(self, ids: Sequence[ClientId]) -> dict[ClientId, str]:
        """See `ClientWorker.digests`."""
        return self.worker.digests(ids)

    def _usage(self) -> ProcessMemory:
        memory_usage = None
        if perf_counter() - self.looked_s > LOOK_S:
            self.looked_s = perf_counter()
            memory_usage = host_memory(), gpu_memory() if self.worker.device.type == "cuda" else None
        return ProcessMemory(private_mb(), self.worker.gpu_peak_mb(), memory_usage)


class ServerActor:
    """A `ServerWorker` in a process of its own."""

    worker: ServerWorker

    def pid(self) -> int:
        """This process."""
        return os.getpid()

    def preload(self) -> None:
        """Import what the server needs, while the driver still reads its data."""
        import raysim.engine.workers.server  # noqa: F401

    def setup(self, spec: RunSpec) -> Place:
        """Make the server anew."""
        from raysim.engine.workers.server import ServerWorker

        self.worker = ServerWorker(spec)
        leave_out_of_collections()
        return place()

    def start(self, *registrations: Mapping[ClientId, Any]) -> None:
        """See `ServerWorker.start`."""
        self.worker.start(registrations)

    def send(self, t: int, cohort: Sequence[ClientId]) -> Broadcast:
        """See `ServerWorker.send`. Ray puts the answer into the object store once."""
        return self.worker.send(t, cohort)

    def update(self, t: int, *uploads: Mapping[ClientId, Any]) -> tuple[ServerReport, ProcessMemory]:
        """See `ServerWorker.update`."""
        return self.worker.update(t, uploads), ProcessMemory(private_mb())

    def save(self, t: int, storage: Storage | None) -> tuple[CheckpointFile, Bytes | None]:
        """Write the state after round `t`. Without a store: hand the file's content over."""
        part, data = self.worker.save(t)
        if storage is None:
            return part, data
        storage.write(part.name, data)
        return part, None

    def restore(self, data: bytes) -> None:
        """See `ServerWorker.restore`."""
        self.worker.restore(data)

    def fingerprints(self) -> dict[str, str]:
        """See `ServerWorker.fingerprints`."""
        return self.worker.fingerprints()

    def digest(self) -> str:
        """See `ServerWorker.digest`."""
        return self.worker.digest()
