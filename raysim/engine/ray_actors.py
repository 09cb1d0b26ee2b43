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

from raysim.engine.pressure import Pressure, gpu_pressure, host_pressure

if TYPE_CHECKING:
    from raysim.core.algorithm import ClientId
    from raysim.engine.commits import Bytes, Part
    from raysim.engine.host import ClientHost, Failed, Measured, Moved, Outbox, Turn
    from raysim.engine.server import ServerHost, ServerReport
    from raysim.engine.store import Store
    from raysim.engine.world import World
    from raysim.engine.writer import Writer

STREAM_S = 1.0
"""A work list longer than this hands over what it has, so that progress is visible."""

TRIM_EVERY_S = 5.0
"""How often an actor gives back what the largest of its models freed; asking for it again costs about 10 ms."""

LOOK_S = 2.0
"""How often it is looked how full the machine is."""


@dataclass(frozen=True)
class Usage:
    """Memory of one process, in MiB."""

    private_mb: float
    gpu_peak_mb: float = 0.0
    pressure: tuple[Pressure, Pressure | None] | None = None  # of its machine and its GPU; None: not looked at now


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


def give_back_freed_memory() -> None:
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


class HostActor:
    """A `ClientHost` in a process of its own, made when it is first needed."""

    made: ClientHost | None = None
    writer: Writer  # since `made`
    what: Sequence[Any] = ()  # references to the world and the images
    gpu_share: float = 0.0
    trimmed_s: float = 0.0  # perf_counter() when freed memory was last given back
    looked_s: float = 0.0  # perf_counter() when it was last looked how full the machine is

    def pid(self) -> int:
        """This process; answering means that it is up."""
        return os.getpid()

    def warm(self) -> None:
        """Import what training needs, while the driver still reads its data."""
        import raysim.engine.host  # noqa: F401

    def setup(self, what: Sequence[Any], gpu_share: float) -> Place:
        """Be as before round 1. what: references to the world and its images."""
        if self.made:
            self.writer.settle()
        self.made, self.what, self.gpu_share = None, what, gpu_share
        return place()

    def ready(self) -> None:
        """Make the host now."""
        _ = self.host

    @property
    def host(self) -> ClientHost:
        """The clients. An actor of which nothing is asked stays a bare process, a fifth of the memory."""
        if self.made is None:
            keep_freed_memory()
            import torch

            from raysim.engine.host import ClientHost
            from raysim.engine.writer import Writer

            device = "cpu"
            if self.gpu_share and torch.cuda.is_available():
                device = "cuda"
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is not deterministic
                # Only here: it imports torch's compiler, 100 MB and seconds, and one thread of a CPU needs no asking.
                torch.use_deterministic_algorithms(True, warn_only=True)
                if self.gpu_share < 1:
                    torch.cuda.set_per_process_memory_fraction(self.gpu_share)
            world, image_MHWC = ray.get(list(self.what))
            self.made, self.writer = ClientHost(world, image_MHWC, device), Writer()
            leave_out_of_collections()
        return self.made

    def join(self, ids: Sequence[ClientId]) -> dict[ClientId, Any]:
        """See `ClientHost.join`."""
        return self.host.join(ids)

    def work(
        self,
        t: int,
        ids: Sequence[ClientId],
        evaluate: bool,
        without: Collection[ClientId],
        outbox: Outbox,
        *moved: Mapping[ClientId, Moved],
    ) -> Iterator[Any]:
        """Round `t`: yields uploads {client: packed} and (turns, usage) by turns, about once a second."""
        for clients in moved:
            self.host.adopt(clients)
        uploads: dict[ClientId, Any] = {}
        turns: dict[ClientId, Turn | Failed] = {}
        since = perf_counter()
        for k, up, turn in self.host.work(t, ids, outbox, evaluate, without):
            uploads[k], turns[k] = up, turn
            if perf_counter() - since > STREAM_S and len(turns) < len(ids):
                yield uploads
                yield turns, self._usage()
                uploads, turns, since = {}, {}, perf_counter()
        yield uploads
        yield turns, self._usage()
        if perf_counter() - self.trimmed_s > TRIM_EVERY_S:
            give_back_freed_memory()
            self.trimmed_s = perf_counter()

    def work_at_once(self, *args: Any) -> tuple[dict[ClientId, Any], tuple[dict[ClientId, Turn | Failed], Usage]]:
        """As `work`, for a list so short that progress within it is not worth a stream: (uploads, (turns, usage))."""
        parts = list(self.work(*args))
        uploads = {k: up for part in parts[::2] for k, up in part.items()}
        turns = {k: turn for part, _ in parts[1::2] for k, turn in part.items()}
        return uploads, (turns, parts[-1][1])

    def measure(self, ids: Sequence[ClientId]) -> dict[ClientId, Measured]:
        """See `ClientHost.measure`."""
        return self.host.measure(ids)

    def release(self, ids: Sequence[ClientId]) -> dict[ClientId, Moved]:
        """See `ClientHost.release`."""
        return self.host.release(ids)

    def adopt(self, moved: Mapping[ClientId, Moved]) -> None:
        """See `ClientHost.adopt`."""
        self.host.adopt(moved)

    def save(self, t: int, store: Store) -> None:
        """Begin to write the clients that changed, as they are after round `t`; `saved` tells when that is done."""
        for part, data in self.relay(t):
            self.writer.write(t, store, part, data)

    def saved(self, t: int) -> list[Part]:
        """The files that `save` began to write, once they are there."""
        return self.writer.written(t) if self.made else []

    def relay(self, t: int) -> Iterator[tuple[Part, Bytes]]:
        """The files of the clients that changed, where this machine does not reach the store."""
        yield from self.host.save(t) if self.made else ()

    def relay_at_once(self, t: int) -> list[tuple[Part, Bytes]]:
        """As `relay`, without a stream."""
        return list(self.relay(t))

    def fingerprints(self, ids: Sequence[ClientId]) -> dict[ClientId, dict[str, str]]:
        """See `ClientHost.fingerprints`."""
        return self.host.fingerprints(ids)

    def settled(self) -> None:
        """What came from a commit need not be saved again, nor what joined."""
        if self.made:
            self.made.unsaved.clear()

    def digests(self, ids: Sequence[ClientId]) -> dict[ClientId, str]:
        """See `ClientHost.digests`."""
        return self.host.digests(ids)

    def _usage(self) -> Usage:
        pressure = None
        if perf_counter() - self.looked_s > LOOK_S:
            self.looked_s = perf_counter()
            pressure = host_pressure(), gpu_pressure() if self.host.device.type == "cuda" else None
        return Usage(private_mb(), self.host.gpu_peak_mb(), pressure)


class ServerActor:
    """A `ServerHost` in a process of its own."""

    host: ServerHost

    def pid(self) -> int:
        """This process."""
        return os.getpid()

    def warm(self) -> None:
        """Import what the server needs, while the driver still reads its data."""
        import raysim.engine.server  # noqa: F401

    def setup(self, world: World) -> Place:
        """Make the server anew."""
        from raysim.engine.server import ServerHost

        self.host = ServerHost(world)
        leave_out_of_collections()
        return place()

    def start(self, *hellos: Mapping[ClientId, Any]) -> None:
        """See `ServerHost.start`."""
        self.host.start(hellos)

    def send(self, t: int, cohort: Sequence[ClientId]) -> Outbox:
        """See `ServerHost.send`. Ray puts the answer into the object store once."""
        return self.host.send(t, cohort)

    def update(self, t: int, *uploads: Mapping[ClientId, Any]) -> tuple[ServerReport, Usage]:
        """See `ServerHost.update`."""
        return self.host.update(t, uploads), Usage(private_mb())

    def save(self, t: int, store: Store | None) -> tuple[Part, Bytes | None]:
        """Write the state after round `t`. Without a store: hand the file's content over."""
        part, data = self.host.save(t)
        if store is None:
            return part, data
        store.write(part.name, data)
        return part, None

    def restore(self, data: bytes) -> None:
        """See `ServerHost.restore`."""
        self.host.restore(data)

    def fingerprints(self) -> dict[str, str]:
        """See `ServerHost.fingerprints`."""
        return self.host.fingerprints()

    def digest(self) -> str:
        """See `ServerHost.digest`."""
        return self.host.digest()
