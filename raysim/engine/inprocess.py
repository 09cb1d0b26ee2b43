"""The backend without Ray: one host, one server, this process. The reference semantics, and the one to step through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights, pack
from raysim.engine.backend import RoundReport
from raysim.engine.checkpoint.format import Bytes, CheckpointFile, PendingFiles
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.memory import MemoryUsage, gpu_memory, host_memory
from raysim.engine.records import (
    ClientEvaluation,
    ClientFailure,
    ClientReport,
    ClientState,
    Startup,
    evaluations_before_training,
    split_failures,
)
from raysim.engine.spec import RunSpec
from raysim.engine.workers.client import ClientWorker, registers
from raysim.engine.workers.server import ServerWorker


class InProcessBackend:
    """See `raysim.engine.backend.Backend`."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.before = (torch.get_num_threads(), torch.get_rng_state())

    def start(self, spec: RunSpec, images: Callable[[], NDArray[np.uint8]]) -> None:
        self.spec, self.images = spec, images
        self.recover()

    def startup(self) -> Startup | None:
        return None

    def recover(self) -> list[str]:
        self.worker = ClientWorker(self.spec, self.images(), self.device)
        self.server = ServerWorker(self.spec)
        registrations = self.worker.register(range(self.spec.num_clients)) if registers(self.spec.algorithm) else {}
        self.server.start([registrations])
        return []

    def restore(self, clients: Iterable[Mapping[ClientId, Weights]], server: bytes) -> None:
        for file in clients:
            self.worker.adopt({k: ClientState(pack(state), unsaved=False) for k, state in file.items()})
        self.worker.unsaved.clear()
        self.server.restore(server)

    def round(
        self,
        t: int,
        cohort: Sequence[ClientId],
        evaluate: bool,
        progress: Callable[[int], None],
        without: Collection[ClientId] = (),
        storage: Storage | None = None,
    ) -> RoundReport:
        broadcast = self.server.send(t, cohort)
        uploads: dict[ClientId, object] = {}
        client_reports: dict[ClientId, ClientReport | ClientFailure] = {}
        for k, up, client_report in self.worker.train(t, cohort, broadcast, evaluate, without):
            uploads[k], client_reports[k] = up, client_report
            progress(len(client_reports))
        taken, failed = split_failures(cohort, client_reports)
        late = evaluate and self.spec.evaluate_when == "after_update"
        evaluations = self.worker.evaluate(cohort) if late else evaluations_before_training(taken)
        report = self.server.update(t, [uploads])
        files = None if storage is None else self.save(t, storage)
        return RoundReport(taken, evaluations, report, failed=failed, files=files)

    def evaluate(self, ids: Sequence[ClientId]) -> Mapping[ClientId, ClientEvaluation]:
        return self.worker.evaluate(ids)

    def save(self, t: int, storage: Storage) -> PendingFiles:
        def written(file: CheckpointFile, data: Bytes) -> CheckpointFile:
            storage.write(file.name, data)
            return file

        files = [written(*one) for one in self.worker.save(t)], written(*self.server.save(t))
        return lambda: files

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        return self.worker.fingerprints(ids), self.server.fingerprints()

    def digests(self) -> tuple[dict[ClientId, str], str]:
        return self.worker.digests(range(self.spec.num_clients)), self.server.digest()

    def set_deadline(self, patience_s: float) -> None:
        """Nobody is busy."""

    def memory(self) -> tuple[float, float]:
        return psutil.Process().memory_info().rss / 2**20, self.worker.gpu_peak_mb()

    def memory_usage(self) -> Mapping[str, tuple[MemoryUsage, MemoryUsage | None]]:
        return {"localhost": (host_memory(), gpu_memory() if self.worker.device.type == "cuda" else None)}

    def close(self) -> None:
        threads, rng = self.before
        torch.set_num_threads(threads)
        torch.set_rng_state(rng)
