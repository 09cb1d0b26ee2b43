"""The backend without Ray: one host, one server, this process. The reference semantics, and the one to step through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights, pack
from raysim.engine.backend import Files, RoundReport, Startup, measured_in_turn, sorted_out
from raysim.engine.commits import Bytes, Part
from raysim.engine.host import ClientHost, Failed, Measured, Moved, Turn, joins
from raysim.engine.pressure import Pressure, gpu_pressure, host_pressure
from raysim.engine.server import ServerHost
from raysim.engine.store import Store
from raysim.engine.world import World


class InProcess:
    """See `raysim.engine.backend.Backend`."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.before = (torch.get_num_threads(), torch.get_rng_state())

    def start(self, world: World, images: Callable[[], NDArray[np.uint8]]) -> None:
        self.world, self.images = world, images
        self.recover()

    def startup(self) -> Startup | None:
        return None

    def recover(self) -> list[str]:
        self.host = ClientHost(self.world, self.images(), self.device)
        self.server = ServerHost(self.world)
        hellos = self.host.join(range(self.world.num_clients)) if joins(self.world.algorithm) else {}
        self.server.start([hellos])
        return []

    def restore(self, clients: Iterable[Mapping[ClientId, Weights]], server: bytes) -> None:
        for part in clients:
            self.host.adopt({k: Moved(pack(state), unsaved=False) for k, state in part.items()})
        self.host.unsaved.clear()
        self.server.restore(server)

    def round(
        self,
        t: int,
        cohort: Sequence[ClientId],
        evaluate: bool,
        progress: Callable[[int], None],
        without: Collection[ClientId] = (),
        store: Store | None = None,
    ) -> RoundReport:
        outbox = self.server.send(t, cohort)
        uploads: dict[ClientId, object] = {}
        turns: dict[ClientId, Turn | Failed] = {}
        for k, up, turn in self.host.work(t, cohort, outbox, evaluate, without):
            uploads[k], turns[k] = up, turn
            progress(len(turns))
        taken, failed = sorted_out(cohort, turns)
        late = evaluate and self.world.evaluate_when == "after_update"
        measured = self.host.measure(cohort) if late else measured_in_turn(taken)
        report = self.server.update(t, [uploads])
        files = None if store is None else self.save(t, store)
        return RoundReport(taken, measured, report, failed=failed, files=files)

    def measure(self, ids: Sequence[ClientId]) -> Mapping[ClientId, Measured]:
        return self.host.measure(ids)

    def save(self, t: int, store: Store) -> Files:
        def written(part: Part, data: Bytes) -> Part:
            store.write(part.name, data)
            return part

        files = [written(*one) for one in self.host.save(t)], written(*self.server.save(t))
        return lambda: files

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        return self.host.fingerprints(ids), self.server.fingerprints()

    def digests(self) -> tuple[dict[ClientId, str], str]:
        return self.host.digests(range(self.world.num_clients)), self.server.digest()

    def hurry(self, patience_s: float) -> None:
        """Nobody is busy."""

    def memory(self) -> tuple[float, float]:
        return psutil.Process().memory_info().rss / 2**20, self.host.gpu_peak_mb()

    def pressure(self) -> Mapping[str, tuple[Pressure, Pressure | None]]:
        return {"localhost": (host_pressure(), gpu_pressure() if self.host.device.type == "cuda" else None)}

    def close(self) -> None:
        threads, rng = self.before
        torch.set_num_threads(threads)
        torch.set_rng_state(rng)
