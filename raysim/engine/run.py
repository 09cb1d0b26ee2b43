"""One run, readable as a page: sample, send, update, aggregate, evaluate, record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from raysim.core.algorithm import ClientId
from raysim.core.results import ClientRow, Tracker
from raysim.core.state import combined_digest
from raysim.engine.backend import Backend, RoundReport
from raysim.engine.host import client_row
from raysim.engine.metrics import EVERYBODY, PARTICIPANTS, mean, measured
from raysim.engine.sampling import cohort
from raysim.engine.world import World


@dataclass(frozen=True)
class Schedule:
    """How long a run goes on and what is measured when."""

    rounds: int
    participants: int  # K
    evaluate_every: int = 1
    snapshot_every: int = 0  # 0: never


@dataclass
class Progress:
    """What accumulates over a run; everything that is not a client's or the server's state."""

    t: int = 0
    latest: dict[ClientId, ClientRow] = field(default_factory=dict)  # last row in which a client was measured
    stale: set[ClientId] = field(default_factory=set)  # changed since they were last measured
    totals: dict[str, float] = field(default_factory=lambda: {"bytes": 0, "flops": 0.0})
    best: dict[str, float] = field(default_factory=dict)
    best_round: int | None = None
    up_components: dict[str, int] = field(default_factory=dict)
    down_components: dict[str, int] = field(default_factory=dict)
    final: dict[str, float | int] = field(default_factory=dict)
    rejected: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> seconds so far
    started: float = 0.0


Note = Callable[[str], None]


def run_rounds(
    world: World,
    schedule: Schedule,
    backend: Backend,
    trackers: Sequence[Tracker],
    progress: Progress,
    note: Note = lambda text: None,
    within_round: Callable[[int, int], None] = lambda done, of: None,
    snapshot: Callable[[int], None] = lambda t: None,
) -> None:
    """Run every round that is left and tell the trackers of each.

    `progress` is changed in place, so that whoever called knows how far a run came that was cut off. An exception
    leaves it at the last round that was handed to the trackers, which may have failed to take in that one.
    """
    eligible = [k for k in range(world.num_clients) if world.num_samples[k]]
    with _Recorder(trackers) as record:
        if progress.t == 0:
            found = backend.measure(range(world.num_clients))
            rows = [client_row(world, 0, k, None, one) for k, one in found.items()]
            progress.latest = {row.client: row for row in rows}
            progress.final = measured(EVERYBODY, rows)
            record(0, progress.final, rows)
        progress.started = perf_counter()
        for t in range(progress.t + 1, schedule.rounds + 1):
            start = perf_counter()
            due = t % schedule.evaluate_every == 0 or t == schedule.rounds
            members = cohort(world.seed, t, eligible, schedule.participants)
            report = backend.round(t, members, due, partial(_within, within_round, len(members)))
            rows = [client_row(world, t, k, turn, report.measured.get(k)) for k, turn in report.turns.items()]
            if due:
                missed = sorted(progress.stale - set(members))
                found = backend.measure(missed) if missed else {}
                rows += [client_row(world, t, k, None, one) for k, one in found.items()]
                progress.latest |= {row.client: row for row in rows}
                progress.stale.clear()
            else:
                progress.stale |= set(members)
            values = _values(report, rows, progress, due)
            values["time/round_s"] = perf_counter() - start
            values["time/total_s"] = perf_counter() - progress.started
            values["memory/host_mb"], values["memory/gpu_peak_mb"] = backend.memory()
            for k in report.server.rejected:
                note(f"round {t}: the upload of client {k} held a NaN or infinity and was left out")
            record(t, values, rows)
            progress.t, progress.final = t, progress.final | values
            if schedule.snapshot_every and (t % schedule.snapshot_every == 0 or t == schedule.rounds):
                snapshot(t)


def state_digest(backend: Backend) -> str:
    """SHA-256 over all client and server state: equal digests mean bit-identical runs."""
    clients, server = backend.digests()
    return combined_digest({f"client/{k:09d}": sha for k, sha in clients.items()} | {"server": server})


def _within(tell: Callable[[int, int], None], of: int, done: int) -> None:
    tell(done, of)


def _values(report: RoundReport, rows: Sequence[ClientRow], progress: Progress, due: bool) -> dict[str, Any]:
    turns = report.turns.values()
    values: dict[str, Any] = measured(PARTICIPANTS, [row for row in rows if row.participated])
    if due:
        values |= measured(EVERYBODY, list(progress.latest.values()))
        for best, source in (
            ("accuracy/best", "accuracy/all"),
            ("accuracy/best_participants", "accuracy/participants"),
        ):
            if source in values and values[source] > progress.best.get(best, -1.0):
                progress.best[best] = values[source]
                if best == "accuracy/best":
                    progress.best_round = rows[0].round
        values |= progress.best
    for turn in turns:
        for name, size in turn.up.components.items():
            progress.up_components[name] = progress.up_components.get(name, 0) + size
        for name, size in turn.down.components.items():
            progress.down_components[name] = progress.down_components.get(name, 0) + size
    progress.rejected += len(report.server.rejected)
    progress.totals["bytes"] += values["comm/up_bytes"] + values["comm/down_bytes"]
    progress.totals["flops"] += values["compute/flops"] + report.server.flops
    values["comm/total_bytes"] = progress.totals["bytes"]
    values["compute/server_flops"] = report.server.flops
    values["compute/total_flops"] = progress.totals["flops"]
    values["time/aggregate_s"] = report.server.seconds
    for phase in ("train", "aggregate", "evaluate"):
        progress.seconds[phase] = progress.seconds.get(phase, 0.0) + values[f"time/{phase}_s"]
    values["engine/restarts"] = 0
    values["engine/moved_clients"] = report.moved
    logged = sorted({name for turn in turns for name in turn.values})
    for name in logged:
        values[f"client/{name}"] = mean([turn.values[name] for turn in turns if name in turn.values])
    return values | {f"server/{name}": value for name, value in report.server.values.items()}


class _Recorder:
    """Tells the trackers of round t while round t + 1 runs: writing files and drawing progress take no round's time.

    One thread, so trackers hear of rounds in order; what a tracker raises reaches the caller with the next round.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = trackers
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self.telling: Future[None] | None = None

    def __enter__(self) -> _Recorder:
        return self

    def __call__(self, t: int, values: dict[str, Any], rows: Sequence[ClientRow]) -> None:
        self._wait()
        ordered = sorted(rows, key=lambda row: row.client)
        self.telling = self.thread.submit(self._tell, t, values, ordered)

    def _tell(self, t: int, values: dict[str, Any], rows: Sequence[ClientRow]) -> None:
        for tracker in self.trackers:
            tracker.log(t, values, rows)

    def _wait(self) -> None:
        if self.telling is not None:
            telling, self.telling = self.telling, None
            telling.result()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._wait()
        finally:
            self.thread.shutdown(wait=True)
