"""The backend without Ray: one worker and the server in this process. It is the reference, and helps to debug.

Every call does its work at once; its pending result is complete when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import psutil
import torch
from numpy.typing import NDArray

from raysim.core import accelerator
from raysim.core.algorithm import ClientId
from raysim.engine.checkpoint.format import read_file
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
    CurrentTests,
    MemoryReport,
    Pending,
    SavedFiles,
    ServerReport,
    TrainingResult,
)
from raysim.engine.workers.client import ClientWorker
from raysim.engine.workers.server import ServerWorker
from raysim.engine.workers.state_files import AUTO, StateFiles, StateLimits

T = TypeVar("T")


class InProcessBackend:
    """See `raysim.engine.backend.Backend`."""

    plan: Plan

    def __init__(self, device: torch.device | str = "cpu", limits: StateLimits = AUTO) -> None:
        self.device, self.limits = torch.device(device), limits
        self.before = (torch.get_num_threads(), accelerator.random_state())
        self.kernels_before = accelerator.kernel_choice()
        if self.device.type != "cpu":
            accelerator.use_deterministic_kernels()

    def start(self, plan: Plan, raw: Callable[[], NDArray[Any]]) -> None:
        self.plan, self.raw = plan, raw
        if self.device.type != "cpu":
            accelerator.release_memory(self.device)
        # This process may have opened a run whose files have the same names but another content.
        plan.own_code.activate()
        self._begin()

    def recover(self) -> None:
        self.worker.states.files.close()
        self._begin()

    def _begin(self) -> None:
        self.worker = ClientWorker(self.plan, self.raw(), self.device, StateFiles(self.limits))
        self.server = ServerWorker(self.plan)
        self.server.start([self.worker.training.register(range(self.plan.num_clients))])

    def restore(self, files: SavedFiles, storage: Storage) -> None:
        clients, server = files
        for file in clients:
            self.worker.restore(file, read_file(storage, file))
        self.worker.states.unsaved.clear()
        self.server.restore(read_file(storage, server))

    def send(self, t: int, cohort: Sequence[ClientId]) -> Broadcast:
        return self.server.send(t, cohort)

    def train(
        self,
        t: int,
        cohort: Sequence[Group],
        broadcast: Broadcast,
        evaluate_before: Coverage | None,
        skip: Collection[ClientId],
        progress: Callable[[int], None],
    ) -> Pending[TrainingResult]:
        uploads: dict[ClientId, Any] = {}
        reports: dict[ClientId, ClientReport | ClientFailure] = {}
        for k, upload, report in self.worker.training.train(t, cohort, broadcast, evaluate_before, skip):
            uploads[k], reports[k] = upload, report
            progress(len(reports))
        return _done(TrainingResult.of(cohort, [uploads], reports))

    def evaluate(
        self, groups: Sequence[Group], coverage: Coverage = "whole"
    ) -> Pending[Mapping[ClientId, ClientEvaluation]]:
        evaluations = self.worker.evaluation.evaluate(groups, coverage)
        return _done({k: evaluations[k] for k in sorted(evaluations)})

    def evaluate_current(self, t: int) -> Pending[CurrentTests]:
        return _done(self.worker.training.evaluate_current(t, range(self.plan.num_clients), self.server.current(t)))

    def discard(self, ids: Collection[ClientId]) -> Pending[None]:
        self.worker.training.discard(ids)
        return _done(None)

    def aggregate(self, t: int, uploads: Sequence[Any], late: Collection[ClientId]) -> Pending[ServerReport]:
        return _done(self.server.update(t, uploads, late))

    def save(self, t: int, storage: Storage) -> Pending[SavedFiles]:
        def written(file: CheckpointFile, data: bytes) -> CheckpointFile:
            storage.write(file.name, data)
            return file

        saved: Future[SavedFiles] = Future()
        try:
            saved.set_result(([written(*one) for one in self.worker.save(t)], written(*self.server.save(t))))
        except OSError as error:
            saved.set_exception(error)
        return Pending(saved.result)

    def digests(self) -> tuple[dict[ClientId, str], str]:
        return self.worker.digests(range(self.plan.num_clients)), self.server.digest()

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        return self.worker.fingerprints(ids), self.server.fingerprints()

    def memory(self) -> MemoryReport:
        resident_mb = psutil.Process().memory_info().rss / 2**20 + self.worker.states.files.memory_mb
        return MemoryReport(resident_mb, accelerator.peak_memory_mb(self.device))

    def close(self) -> None:
        if hasattr(self, "worker"):
            self.worker.states.files.close()
        threads, state = self.before
        torch.set_num_threads(threads)
        accelerator.set_random_state(state)
        if self.device.type != "cpu":
            accelerator.set_kernel_choice(self.kernels_before)


def _done(value: T) -> Pending[T]:
    return Pending(lambda: value)
