"""The backend without Ray: one host, one server, this process. The reference semantics, and the one to step through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights, unpack
from raysim.engine.backend import RoundReport, measured_in_turn
from raysim.engine.host import ClientHost, Measured, Turn, joins
from raysim.engine.server import ServerHost
from raysim.engine.world import World


class InProcess:
    """See `raysim.engine.backend.Backend`."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.before = (torch.get_num_threads(), torch.get_rng_state())

    def start(self, world: World, image_MHWC: NDArray[np.uint8]) -> None:
        self.world = world
        self.host = ClientHost(world, image_MHWC, self.device)
        self.server = ServerHost(world)
        hellos = self.host.join(range(world.num_clients)) if joins(world.algorithm) else {}
        self.server.start([hellos])

    def round(self, t: int, cohort: Sequence[ClientId], evaluate: bool, progress: Callable[[int], None]) -> RoundReport:
        outbox = self.server.send(t, cohort)
        uploads: dict[ClientId, object] = {}
        turns: dict[ClientId, Turn] = {}
        for k, up, turn in self.host.work(t, cohort, outbox, evaluate):
            uploads[k], turns[k] = up, turn
            progress(len(turns))
        late = evaluate and self.world.evaluate_when == "after_update"
        measured = self.host.measure(cohort) if late else measured_in_turn(turns)
        return RoundReport(turns, measured, self.server.update(t, [uploads]))

    def measure(self, ids: Sequence[ClientId]) -> Mapping[ClientId, Measured]:
        return self.host.measure(ids)

    def states(self) -> tuple[dict[ClientId, Weights], Weights]:
        return unpack(self.host.states()), unpack(self.server.state())

    def digests(self) -> tuple[dict[ClientId, str], str]:
        return self.host.digests(range(self.world.num_clients)), self.server.digest()

    def memory(self) -> tuple[float, float]:
        return psutil.Process().memory_info().rss / 2**20, self.host.gpu_peak_mb()

    def close(self) -> None:
        threads, rng = self.before
        torch.set_num_threads(threads)
        torch.set_rng_state(rng)
