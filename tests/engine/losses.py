"""The loss schedule: a run on simulated workers that loses parts of itself at moments which a seed decides.

Some client workers and a server live in one process. Before or after any call of the `Backend` protocol, or while a
checkpoint is written, the schedule takes something away: a worker, the server, a node with half of the workers, the
answer of a call, the room on the disk, or the process that drives the run. The run recovers, or is resumed as from a
new process, and must end with the digest and the rows of a run that loses nothing. A failure replays from its seed:

    python -m tests.engine.losses --seeds 1000
    python -m tests.engine.losses --first 17 --seeds 1 --verbose
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from raysim.common.results import ClientRow
from raysim.core.algorithm import ClientId
from raysim.engine.checkpoint.format import CheckpointError, read_file
from raysim.engine.checkpoint.storage import LocalStorage, Storage
from raysim.engine.checkpoint.store import CheckpointManager, CheckpointStore
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import Coverage
from raysim.engine.policies.placement import Group
from raysim.engine.recorder import Recorder
from raysim.engine.records import (
    Broadcast,
    CheckpointFile,
    ClientEvaluation,
    ClientFailure,
    ClientReport,
    CurrentTests,
    LostError,
    MemoryReport,
    Pending,
    SavedFiles,
    ServerReport,
    TrainingResult,
)
from raysim.engine.run import Rounds
from raysim.engine.workers.client import ClientWorker
from raysim.engine.workers.server import ServerWorker
from raysim.engine.workers.state_files import StateFiles, StateLimits
from raysim.results.in_memory import MemoryTracker
from raysim.runs.plan import RunData, make_plan
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import all_rounds, plain

T = TypeVar("T")

SYSTEM = "system={flops_per_s: [1.0e9, 2.0e9, 4.0e9], latency_s: {name: uniform, low: 0, high: 0.1}, dropout: 0.2}"
VARIANTS: tuple[tuple[str, ...], ...] = (
    ("algorithm={name: fedgh}", "evaluation.every=2"),
    (
        "algorithm={name: fedproto}",
        "evaluation={clients: all, when: both, every: 2}",
        "checkpoint.keep=[last, best_val]",
    ),
    (
        "algorithm={name: fedssa}",
        SYSTEM,
        "clients.deadline_s=0.06",
        "clients.oversample=1.5",
        "clients.selection.name=by_samples",
    ),
    (
        "algorithm={name: fedavg}",
        "clients.models=[digits_mlp64]",
        "system={flops_per_s: [1.0e9, 2.0e9, 4.0e9]}",
        "asynchronous={buffer: 2}",
        "adversary={clients: 0.3, attack: {name: noise}}",
    ),
)
"""Scenarios of the runs: they differ in what a round calls."""
LIMITS = StateLimits(memory_gb=0.1)
PARTS = {"worker": 4, "server": 3, "node": 2, "answer": 2, "driver": 2}
"""What is lost, and how often relative to the others."""


class KilledError(BaseException):
    """Stands for SIGKILL of the process that drives the run: nothing in raysim catches it."""


@dataclass
class Schedule:
    """What is lost at which call, decided by the seed. Every run ends: after `most` losses, nothing more is lost."""

    seed: int
    rate: float = 0.06  # losses per call
    most: int = 12
    lost: list[str] = field(default_factory=list)  # what was lost so far, in words

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.workers = self.rng.randint(1, 4)
        self.every = self.rng.choice([0, 1, 2, 3])  # rounds between checkpoints; 0: none

    def strikes(self, call: str, parts: Mapping[str, int]) -> str:
        """Return what is lost at a call; "" for nothing."""
        if len(self.lost) >= self.most or self.rng.random() >= self.rate:
            return ""
        part = self.rng.choices([*parts], [*parts.values()])[0]
        self.lost.append(f"{part} at {call}")
        return part


@dataclass(frozen=True)
class LosingStorage(LocalStorage):
    """A folder on a disk that may be full, and whose process may be killed while it writes."""

    schedule: Schedule = field(default_factory=lambda: Schedule(0))

    def write(self, name: str, data: bytes) -> None:
        self._strike(name, data)
        super().write(name, data)

    def publish(self, name: str, data: bytes) -> None:
        self._strike(name, data)
        super().publish(name, data)

    def _strike(self, name: str, data: bytes) -> None:
        part = self.schedule.strikes(f"the file {name}", {"disk": 1, "driver": 1})
        if part:
            super().write(f".{name}.half", data[: len(data) // 2])
        if part == "disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self.where}/{name}")
        if part == "driver":
            raise KilledError


class SimulatedWorkers:
    """The `Backend` of the schedule: client k lives on worker k modulo their number. Who is lost forgets everything."""

    plan: Plan

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.workers: list[ClientWorker | None] = []  # None: lost
        self.server: ServerWorker | None = None

    # -- losses ------------------------------------------------------------------------------------

    def _call(self, name: str, work: Callable[[], T]) -> T:
        """Do a call's work. A part may be lost before it, after it, or after its answer has arrived."""
        part = self.schedule.strikes(name, PARTS)
        when = self.schedule.rng.choice(["before", "after", "unnoticed"]) if part else ""
        if when == "before":
            self._lose(part, name)
        answer = work()
        if when in ("after", "unnoticed"):
            self._lose(part, name)
        if when == "after":
            raise LostError(f"{name}: an answer is lost")
        return answer

    def _pending(self, name: str, work: Callable[[], T]) -> Pending[T]:
        try:
            answer = self._call(name, work)
        except (LostError, OSError) as error:
            problem = error

            def fail() -> T:
                raise problem

            return Pending(fail)
        return Pending(lambda: answer)

    def _lose(self, part: str, call: str) -> None:
        if part == "driver":
            raise KilledError
        if part == "server":
            self.server = None
        if part in ("worker", "node") and self.workers:  # none before the first start
            count = 1 if part == "worker" else -(-len(self.workers) // 2)
            for i in self.schedule.rng.sample(range(len(self.workers)), count):
                self._forget(i)
        if part == "answer":
            raise LostError(f"{call}: an object is lost")

    def _forget(self, i: int) -> None:
        worker, self.workers[i] = self.workers[i], None
        if worker is not None:
            worker.states.files.close()

    def _worker(self, i: int) -> ClientWorker:
        worker = self.workers[i]
        if worker is None:
            raise LostError(f"client worker {i + 1} of {len(self.workers)} died")
        return worker

    def _server(self) -> ServerWorker:
        if self.server is None:
            raise LostError("the server died")
        return self.server

    def _shares(self, groups: Sequence[Group]) -> dict[int, list[Group]]:
        """Return the groups of each worker that has any; a group here is one client."""
        shares: dict[int, list[Group]] = {}
        for group in groups:
            shares.setdefault(group[0] % len(self.workers), []).append(group)
        return shares

    # -- the protocol ------------------------------------------------------------------------------

    def start(self, plan: Plan, raw: Callable[[], NDArray[Any]]) -> None:
        self.plan, self.raw = plan, raw()
        self.recover()

    def recover(self) -> None:
        self.close()
        self._call("recover", self._begin)

    def _begin(self) -> None:
        # After a node is lost, fewer workers may be left; after the next loss, other nodes may be there.
        count = self.schedule.rng.randint(1, self.schedule.workers)
        self.workers = [ClientWorker(self.plan, self.raw, "cpu", StateFiles(LIMITS)) for _ in range(count)]
        self.server = ServerWorker(self.plan)
        shares = self._shares([(k,) for k in range(self.plan.num_clients)])
        self.server.start([self._worker(i).training.register(k for (k,) in ids) for i, ids in shares.items()])

    def restore(self, files: SavedFiles, storage: Storage) -> None:
        def work() -> None:
            clients, server = files
            for file in clients:
                for i, groups in self._shares([(k,) for k in file.clients]).items():
                    part = file._replace(clients=tuple(k for (k,) in groups))
                    self._worker(i).restore(part, read_file(storage, file))
            for i in range(len(self.workers)):
                self._worker(i).states.unsaved.clear()
            self._server().restore(read_file(storage, server))

        self._call("restore", work)

    def send(self, t: int, cohort: Sequence[ClientId]) -> Broadcast:
        return self._call("send", lambda: self._server().send(t, cohort))

    def train(
        self,
        t: int,
        cohort: Sequence[Group],
        broadcast: Broadcast,
        evaluate_before: Coverage | None,
        skip: Collection[ClientId],
        progress: Callable[[int], None],
    ) -> Pending[TrainingResult]:
        def work() -> TrainingResult:
            reports: dict[ClientId, ClientReport | ClientFailure] = {}
            uploads: list[dict[ClientId, Any]] = []
            for i, groups in self._shares(cohort).items():
                uploads.append({})
                for k, upload, report in self._worker(i).training.train(t, groups, broadcast, evaluate_before, skip):
                    uploads[-1][k], reports[k] = upload, report
            return TrainingResult.of(cohort, uploads, reports)

        return self._pending("train", work)

    def evaluate(
        self, groups: Sequence[Group], coverage: Coverage = "whole"
    ) -> Pending[Mapping[ClientId, ClientEvaluation]]:
        def work() -> dict[ClientId, ClientEvaluation]:
            parts = [self._worker(i).evaluation.evaluate(part, coverage) for i, part in self._shares(groups).items()]
            return dict(sorted((k, one) for part in parts for k, one in part.items()))

        return self._pending("evaluate", work)

    def evaluate_current(self, t: int) -> Pending[CurrentTests]:
        def work() -> CurrentTests:
            broadcast, everyone = self._server().current(t), [(k,) for k in range(self.plan.num_clients)]
            parts = [
                self._worker(i).training.evaluate_current(t, [k for (k,) in ids], broadcast)
                for i, ids in self._shares(everyone).items()
            ]
            return dict(sorted((k, one) for part in parts for k, one in part.items()))

        return self._pending("evaluate_current", work)

    def discard(self, ids: Collection[ClientId]) -> Pending[None]:
        def work() -> None:
            for i, groups in self._shares([(k,) for k in ids]).items():
                self._worker(i).training.discard([k for (k,) in groups])

        return self._pending("discard", work)

    def aggregate(self, t: int, uploads: Sequence[Any], late: Collection[ClientId]) -> Pending[ServerReport]:
        return self._pending("aggregate", lambda: self._server().update(t, uploads, late))

    def save(self, t: int, storage: Storage) -> Pending[SavedFiles]:
        def written(file: CheckpointFile, data: bytes) -> CheckpointFile:
            storage.write(file.name, data)
            return file

        def work() -> SavedFiles:
            clients = [written(*one) for i in range(len(self.workers)) for one in self._worker(i).save(t)]
            return clients, written(*self._server().save(t))

        return self._pending("save", work)

    def digests(self) -> tuple[dict[ClientId, str], str]:
        def work() -> tuple[dict[ClientId, str], str]:
            shares = self._shares([(k,) for k in range(self.plan.num_clients)])
            clients = [self._worker(i).digests(k for (k,) in ids) for i, ids in shares.items()]
            return {k: sha for part in clients for k, sha in part.items()}, self._server().digest()

        return self._call("digests", work)

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        raise NotImplementedError("no run of the schedule asks for fingerprints")

    def memory(self) -> MemoryReport:
        return MemoryReport(0.0, 0.0)

    def close(self) -> None:
        for i in range(len(self.workers)):
            self._forget(i)
        self.server = None


# -- runs ------------------------------------------------------------------------------------------


class Rows(MemoryTracker):
    """The rows of a run folder: those after the last `sync` are lost with the process that drives the run."""

    synced = 0  # rounds

    def sync(self) -> None:
        self.synced = len(self.rounds)

    def truncate(self, t: int) -> dict[ClientId, ClientRow]:
        """Keep rounds 0 to `t` of those that were synced; return each client's last row with a test."""
        assert self.synced > t, "a checkpoint was complete before its rows were durable"
        self.rounds = [row for row in self.rounds[: self.synced] if row["round"] <= t]
        self.clients = [row for row in self.clients if row.round <= t]
        return {row.client: row for row in self.clients if row.total is not None}


Outcome = tuple[str, list[ClientRow], list[dict[str, Any]]]


@cache
def variant_plan(variant: tuple[str, ...]) -> tuple[Scenario, Plan, RunData]:
    """Return what a run of a variant starts from."""
    scenario = Scenario.of(plain("rounds=4", "training.batch_size=64", *variant))
    return scenario, *make_plan(scenario)


@cache
def undisturbed(variant: tuple[str, ...]) -> Outcome:
    """Return the outcome of a run that loses nothing, in the in-process backend."""
    (_, plan, data), backend, rows = variant_plan(variant), InProcessBackend(), Rows()
    try:
        digest = all_rounds(plan, backend, data.raw, rows)
    finally:
        backend.close()
    return outcome(digest, rows)


def outcome(digest: str, rows: Rows) -> Outcome:
    """Return what must be equal: the digest, and all rows without times, memory and restarts."""
    clients = [replace(row, train_s=0.0, evaluate_s=0.0) for row in rows.clients]
    varying = ("time/", "memory/", "engine/")
    return digest, clients, [{k: v for k, v in one.items() if not k.startswith(varying)} for one in rows.rounds]


def run_with_losses(
    schedule: Schedule, folder: Path, backend: Callable[[Schedule], SimulatedWorkers] = SimulatedWorkers
) -> Outcome:
    """Run a variant to its end, resuming it from a new process's view after each loss that ends it."""
    variant, rows = VARIANTS[schedule.seed % len(VARIANTS)], Rows()
    while True:
        try:
            return outcome(attempt(variant, schedule, folder, rows, backend(schedule)), rows)
        except (KilledError, CheckpointError):
            pass


def attempt(variant: tuple[str, ...], schedule: Schedule, folder: Path, rows: Rows, workers: SimulatedWorkers) -> str:
    """Start the run, or resume it from its checkpoints and rows, and return the digest of its end."""
    scenario, plan, data = variant_plan(variant)
    storage = LosingStorage(str(folder), schedule)
    store = CheckpointStore.open(storage)
    keeps = "best_val" in scenario.checkpoint.keep
    manager = (
        CheckpointManager(store, schedule.every, plan.num_rounds, rows.sync, keep_best_val=keeps)
        if schedule.every
        else None
    )
    try:
        # Rows are logged at once: if a thread logged them beside the next round, a seed would not replay its losses.
        with Recorder([rows], at_once=True) as record:
            rounds = Rounds(replace(plan, max_attempts=100), workers, record, manager)
            rounds.start(data.raw, store, rows.truncate)
            for _ in rounds:
                pass
            return rounds.state_digest()
    finally:
        workers.close()


def main() -> None:
    """Run seeds one after the other; end with the first whose outcome differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print the losses of each seed")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    lost: Counter[str] = Counter()
    began = time.perf_counter()
    for seed in range(options.first, options.first + options.seeds):
        schedule = Schedule(seed)
        with tempfile.TemporaryDirectory() as folder:
            found = run_with_losses(schedule, Path(folder))
        lost.update(text.split()[0] for text in schedule.lost)
        if options.verbose:
            print(f"seed {seed}: {'; '.join(schedule.lost) or 'nothing lost'}", flush=True)
        if found != undisturbed(VARIANTS[seed % len(VARIANTS)]):
            raise SystemExit(f"seed {seed} ends differently after these losses: {'; '.join(schedule.lost)}")
    counts = ", ".join(f"{part}: {count}" for part, count in sorted(lost.items()))
    seconds = time.perf_counter() - began
    print(f"{options.seeds} seeds, {lost.total()} losses ({counts}), {seconds:.0f} s: every outcome identical")


if __name__ == "__main__":
    main()
