"""The backend on Ray, and the only module that imports it: a server actor, client actors, object references.

One round: the server packs its messages into one object; every client actor gets one work list and that object's
reference; uploads go from actor to server without passing through the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
import psutil
import ray
from numpy.typing import NDArray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from raysim.core.algorithm import ClientId
from raysim.core.errors import RaysimError, RunError, ScenarioError
from raysim.core.messages import Weights, unpack
from raysim.engine.backend import RoundReport, measured_in_turn
from raysim.engine.host import ClientHost, Measured, Outbox, Turn, joins
from raysim.engine.placement import Machine, Plan, assign
from raysim.engine.server import ServerHost, ServerReport
from raysim.engine.world import World

STREAM_S = 1.0
"""A work list longer than this hands over what it has, so that progress is visible."""

START_TIMEOUT_S = 300.0

TRIM_EVERY_S = 5.0
"""How often an actor gives back what the largest of its models freed; asking for it again costs about 10 ms."""


@dataclass(frozen=True)
class Usage:
    """Memory of one process, in MiB."""

    private_mb: float
    gpu_peak_mb: float = 0.0


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


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back for a moment; a task that is half handed to Ray dies with a traceback of Ray's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    before = {
        number: signal.signal(number, lambda number, frame: arrived.append((number, frame)))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for got, frame in arrived[:1]:
        handler = before[signal.Signals(got)]
        if callable(handler):
            handler(got, frame)
        elif handler == signal.SIG_DFL:
            signal.raise_signal(got)


class HostActor:
    """A `ClientHost` in a process of its own."""

    host: ClientHost
    trimmed_s: float = 0.0  # perf_counter() when freed memory was last given back

    def pid(self) -> int:
        """This process; answering means that it is up, torch included."""
        return os.getpid()

    def setup(self, world: World, image_MHWC: NDArray[np.uint8], gpu_share: float) -> None:
        """Make the host; the images are this node's one copy, read-only."""
        keep_freed_memory()
        import torch

        device = "cpu"
        if gpu_share and torch.cuda.is_available():
            device = "cuda"
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is not deterministic
            # Only here: the call imports torch's compiler, 100 MB and seconds, and one thread of a CPU needs no asking.
            torch.use_deterministic_algorithms(True, warn_only=True)
            if gpu_share < 1:
                torch.cuda.set_per_process_memory_fraction(gpu_share)
        self.host = ClientHost(world, image_MHWC, device)

    def join(self, ids: Sequence[ClientId]) -> dict[ClientId, Any]:
        """See `ClientHost.join`."""
        return self.host.join(ids)

    def work(
        self, t: int, ids: Sequence[ClientId], evaluate: bool, outbox: Outbox, *moved: Mapping[ClientId, Any]
    ) -> Iterator[Any]:
        """Round `t`: yields uploads {client: packed} and (turns, usage) by turns, about once a second."""
        for states in moved:
            self.host.adopt(states)
        uploads: dict[ClientId, Any] = {}
        turns: dict[ClientId, Turn] = {}
        since = perf_counter()
        for k, up, turn in self.host.work(t, ids, outbox, evaluate):
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

    def measure(self, ids: Sequence[ClientId]) -> dict[ClientId, Measured]:
        """See `ClientHost.measure`."""
        return self.host.measure(ids)

    def release(self, ids: Sequence[ClientId]) -> dict[ClientId, Any]:
        """See `ClientHost.release`."""
        return self.host.release(ids)

    def states(self) -> dict[ClientId, Any]:
        """See `ClientHost.states`."""
        return self.host.states()

    def digests(self, ids: Sequence[ClientId]) -> dict[ClientId, str]:
        """See `ClientHost.digests`."""
        return self.host.digests(ids)

    def _usage(self) -> Usage:
        return Usage(private_mb(), self.host.gpu_peak_mb())


class ServerActor:
    """A `ServerHost` in a process of its own."""

    host: ServerHost

    def setup(self, world: World) -> None:
        """Make the server."""
        self.host = ServerHost(world)

    def start(self, *hellos: Mapping[ClientId, Any]) -> None:
        """See `ServerHost.start`."""
        self.host.start(hellos)

    def send(self, t: int, cohort: Sequence[ClientId]) -> Outbox:
        """See `ServerHost.send`. Ray puts the answer into the object store once."""
        return self.host.send(t, cohort)

    def update(self, t: int, *uploads: Mapping[ClientId, Any]) -> tuple[ServerReport, Usage]:
        """See `ServerHost.update`."""
        return self.host.update(t, uploads), Usage(private_mb())

    def state(self) -> Weights:
        """See `ServerHost.state`."""
        return self.host.state()

    def digest(self) -> str:
        """See `ServerHost.digest`."""
        return self.host.digest()


def connect(local_cpus: float | None = None) -> bool:
    """Join the Ray that is there (RAY_ADDRESS, or one this process has started), else start a local one.

    local_cpus: CPUs that a local Ray should offer; more than the machine has is allowed, they are only counted.
    Returns whether a Ray was started that should be stopped again. Raises `ScenarioError` when RAY_ADDRESS
    does not answer.
    """
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    # Ray would otherwise warn that this is about to change; our actors without a GPU do not look at it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": True}
    if address:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ScenarioError(
                f"RAY_ADDRESS: {address} given, but no Ray cluster answers there ({str(error).splitlines()[0]}); "
                "unset it to start a local Ray"
            ) from None
        return False
    cpus = None if local_cpus is None else max(int(np.ceil(local_cpus)), os.cpu_count() or 1)
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
    return True


def machine() -> Machine:
    """What the connected cluster has."""
    found = ray.cluster_resources()
    nodes = sum(1 for node in ray.nodes() if node["Alive"])
    return Machine(found.get("CPU", 0.0), found.get("GPU", 0.0), nodes)


@dataclass
class RayBackend:
    """See `raysim.engine.backend.Backend`. Actors are created at once, so that they import meanwhile."""

    plan: Plan
    hosts: list[Any] = field(default_factory=list)
    world: World = field(init=False)
    owner: dict[ClientId, int] = field(init=False)  # client -> the actor that holds its state
    usage: dict[int, Usage] = field(init=False)  # actor (-1: the server) -> its memory
    pace: dict[str, float] = field(init=False)  # architecture -> measured seconds per sample of a turn

    def __post_init__(self) -> None:
        host = ray.remote(HostActor)
        self.shares: list[float] = []
        for group in self.plan.groups:
            for _ in range(group.actors):
                options = host.options(
                    num_cpus=group.cpus_per_actor, num_gpus=group.gpus_per_actor, scheduling_strategy="SPREAD"
                )
                self.hosts.append(options.remote())
                self.shares.append(group.gpus_per_actor)
        # The server works while the clients wait, so it takes no CPU away from them.
        self.server = ray.remote(ServerActor).options(num_cpus=0).remote()

    def start(self, world: World, image_MHWC: NDArray[np.uint8]) -> None:
        self.world = world
        self.owner, self.usage, self.pace = {}, {}, {}
        images, shared = ray.put(image_MHWC), ray.put(world)
        begun = [host.setup.remote(shared, images, share) for host, share in zip(self.hosts, self.shares, strict=True)]
        self._get([*begun, self.server.setup.remote(shared)], "starting", timeout=START_TIMEOUT_S)
        hellos = []
        if joins(world.algorithm):
            everyone = self._spread(range(world.num_clients))
            self.owner |= {k: actor for actor, ids in everyone.items() for k in ids}
            hellos = [self.hosts[actor].join.remote(ids) for actor, ids in everyone.items()]
        self._get(self.server.start.remote(*hellos), "round 0")

    def round(self, t: int, cohort: Sequence[ClientId], evaluate: bool, progress: Callable[[int], None]) -> RoundReport:
        where = f"round {t}"
        lists = assign(cohort, {k: self._expected(k) for k in cohort}, self.owner, self.plan.groups)
        moves: dict[tuple[int, int], list[ClientId]] = {}  # (old actor, new actor) -> clients
        for actor, ids in lists.items():
            for k in ids:
                if self.owner.get(k, actor) != actor:
                    moves.setdefault((self.owner[k], actor), []).append(k)
        late = evaluate and self.world.evaluate_when == "after_update"
        with uninterrupted():
            outbox = self.server.send.remote(t, cohort)
            # Old owners give up before any new work is queued behind it.
            given = {(old, new): self.hosts[old].release.remote(ids) for (old, new), ids in moves.items()}
            streams = {
                self.hosts[actor]
                .work.options(num_returns="streaming")
                .remote(
                    t, ids, evaluate, outbox, *(states for (_, new), states in given.items() if new == actor)
                ): actor
                for actor, ids in lists.items()
            }
            # Queued behind the work, so that actors test their models while the server updates.
            tests = [self.hosts[actor].measure.remote(ids) for actor, ids in lists.items()] if late else []
        self.owner |= {k: actor for actor, ids in lists.items() for k in ids}
        uploads, turns = self._collect(streams, where, progress)
        updated = self.server.update.remote(t, *uploads)
        measured = {k: one for part in self._get(tests, where) for k, one in part.items()} or measured_in_turn(turns)
        report, self.usage[-1] = self._get(updated, where)
        self._learn(turns, measured)
        return RoundReport({k: turns[k] for k in cohort}, measured, report, sum(map(len, moves.values())))

    def measure(self, ids: Sequence[ClientId]) -> Mapping[ClientId, Measured]:
        parts = [self.hosts[actor].measure.remote(part) for actor, part in self._spread(ids).items()]
        found = {k: one for part in self._get(parts, "a test of all clients") for k, one in part.items()}
        return {k: found[k] for k in ids}

    def states(self) -> tuple[dict[ClientId, Weights], Weights]:
        *parts, server = self._get([*(h.states.remote() for h in self.hosts), self.server.state.remote()], "a snapshot")
        return {k: state for part in parts for k, state in unpack(part).items()}, unpack(server)

    def digests(self) -> tuple[dict[ClientId, str], str]:
        everyone = self._spread(range(self.world.num_clients))
        parts = [self.hosts[a].digests.remote(ids) for a, ids in everyone.items()]
        found = {k: sha for part in self._get(parts, "the digest") for k, sha in part.items()}
        return found, self._get(self.server.digest.remote(), "the digest")

    def memory(self) -> tuple[float, float]:
        private = private_mb() + sum(usage.private_mb for usage in self.usage.values())
        return private, max((usage.gpu_peak_mb for usage in self.usage.values()), default=0.0)

    def close(self) -> None:
        if ray.is_initialized():
            for actor in [*self.hosts, self.server]:
                ray.kill(actor)
        self.hosts.clear()

    # -- inside ------------------------------------------------------------------------------------

    def _collect(
        self, streams: dict[Any, int], where: str, progress: Callable[[int], None]
    ) -> tuple[list[Any], dict[ClientId, Turn]]:
        """Take in what actors hand over, in whatever order; nothing is summed here."""
        uploads: list[Any] = []
        turns: dict[ClientId, Turn] = {}
        open_streams = list(streams)
        while open_streams:
            (ready,), _ = self._told(lambda: ray.wait(open_streams, num_returns=1, fetch_local=False), where)
            try:
                up = next(ready)
                # The first of a pair may be the error of the whole work list; the second is then missing.
                report = next(ready, up)
            except StopIteration:
                open_streams.remove(ready)
                continue
            part, self.usage[streams[ready]] = self._get(report, where)
            uploads.append(up)
            turns |= part
            progress(len(turns))
        return uploads, turns

    def _spread(self, ids: Iterable[ClientId]) -> dict[int, list[ClientId]]:
        """Clients by the actor that holds them; those that nobody holds yet are dealt out in their group."""
        parts: dict[int, list[ClientId]] = {}
        place: dict[ClientId, int] = {}
        base = 0
        for group in self.plan.groups:
            place |= {k: base + i % group.actors for i, k in enumerate(group.clients)}
            base += group.actors
        for k in ids:
            parts.setdefault(self.owner.get(k, place[k]), []).append(k)
        return parts

    def _expected(self, k: ClientId) -> float:
        """Expected seconds of a client's turn: its samples at its architecture's measured pace.

        An architecture that was not measured yet counts as the mean of those that were.
        """
        known = self.pace.values()
        return self._samples(k) * self.pace.get(self.world.arch(k), sum(known) / len(known) if known else 1.0)

    def _samples(self, k: ClientId) -> int:
        """Samples that a client's turn passes through its network, and one for what each turn costs anyway."""
        return self.world.local.epochs * len(self.world.train.of(k)) + len(self.world.test.of(k)) + 1

    def _learn(self, turns: Mapping[ClientId, Turn], measured: Mapping[ClientId, Measured]) -> None:
        for k, turn in turns.items():
            seconds = (turn.train_s + (measured[k].seconds if k in measured else 0.0)) / self._samples(k)
            arch = self.world.arch(k)
            self.pace[arch] = 0.7 * self.pace[arch] + 0.3 * seconds if arch in self.pace else seconds

    def _get(self, refs: Any, where: str, timeout: float | None = None) -> Any:
        return self._told(lambda: ray.get(refs, timeout=timeout), where)

    def _told(self, call: Callable[[], Any], where: str) -> Any:
        """Make the call; an actor's failure becomes one sentence."""
        try:
            return call()
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, RaysimError):
                raise cause from None
            raise RunError(f"{where}: {type(cause).__name__}: {cause}") from error
        except RayActorError as error:
            reason = str(error).strip().splitlines()[0]
            raise RunError(f"{where}: an actor died, and with it the state of its clients: {reason}") from None
        except GetTimeoutError:
            raise RunError(
                f"{where}: the actors were not up after {START_TIMEOUT_S:.0f} s; `ray status` shows what they wait for"
            ) from None


def disconnect() -> None:
    """Stop the Ray that `connect` started."""
    with contextlib.suppress(Exception):
        ray.shutdown()
