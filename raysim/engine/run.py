"""One run, readable as a page: sample, send, update, aggregate, evaluate, record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, get_type_hints

from raysim.common.errors import RunError
from raysim.common.results import ClientRow, Tracker
from raysim.core.algorithm import ClientId
from raysim.core.state import combined_digest
from raysim.engine.backend import Backend, RoundReport
from raysim.engine.checkpoint.manager import CheckpointManager
from raysim.engine.memory import ResourceMonitor
from raysim.engine.policies.metrics import EVERYBODY, PARTICIPANTS, compute_metrics, mean
from raysim.engine.policies.sampling import cohort
from raysim.engine.records import client_row
from raysim.engine.recovery import Notify, RecoveringBackend
from raysim.engine.spec import RunSpec
from raysim.engine.workers.hooks import HookError


@dataclass(frozen=True)
class Schedule:
    """How long a run goes on, what is measured when, and what it bears."""

    rounds: int
    participants: int  # K
    evaluate_every: int = 1
    max_failed_fraction: float = 0.0
    max_attempts: int = 5


@dataclass
class Progress:
    """What accumulates over a run; everything that is not a client's or the server's state."""

    t: int = -1  # the last round that is done; -1: not even the state before the first was measured
    latest: dict[ClientId, ClientRow] = field(default_factory=dict)  # last row in which a client was measured
    stale: set[ClientId] = field(default_factory=set)  # changed since they were last measured
    totals: dict[str, float] = field(default_factory=lambda: {"bytes": 0, "flops": 0.0})
    best: dict[str, float] = field(default_factory=dict)
    best_round: int | None = None
    best_val: float = -1.0  # greatest accuracy/val
    best_val_round: int | None = None
    up_components: dict[str, int] = field(default_factory=dict)
    down_components: dict[str, int] = field(default_factory=dict)
    final: dict[str, float | int] = field(default_factory=dict)
    rejected: int = 0
    failed: int = 0
    client_rounds: int = 0
    restarts: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> seconds so far
    before_s: float = 0.0  # seconds of the rounds before this process took part
    started: float = 0.0

    @property
    def rounds(self) -> int:
        """How many rounds are done."""
        return max(self.t, 0)

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps of this, as JSON; what clients were measured at is in their rows.

        A copy: the checkpoint is written while the next round is counted.
        """
        kept = {name: copy.deepcopy(getattr(self, name)) for name in _FACTS}
        return {**kept, "stale": sorted(self.stale), "before_s": self.elapsed_s()}

    @classmethod
    def resumed(cls, t: int, facts: Mapping[str, Any], latest: Mapping[ClientId, ClientRow]) -> Progress:
        """As it was after round `t`, of which a checkpoint kept `facts`. Raises `RunError` when these are none."""
        from pydantic import TypeAdapter  # no actor needs it

        kept = {name: facts[name] for name in _FACTS if name in facts}  # an earlier version did not count all of them
        hints = get_type_hints(cls)
        try:
            for name, value in {**kept, "before_s": facts["before_s"]}.items():
                TypeAdapter(hints[name]).validate_python(value, strict=True)
            TypeAdapter(list[ClientId]).validate_python(facts["stale"], strict=True)
        except (ValueError, KeyError) as error:
            raise RunError(
                f"the checkpoint of round {t} does not say how the run stood ({' '.join(str(error).split())})"
            ) from None
        return cls(t=t, latest=dict(latest), stale=set(facts["stale"]), before_s=facts["before_s"], **kept)

    def take_best(self, t: int, values: Mapping[str, float]) -> None:
        """Keep what is the best so far of what round `t` measured; of equal rounds the earlier one."""
        for best, source in (
            ("accuracy/best", "accuracy/all"),
            ("accuracy/best_participants", "accuracy/participants"),
        ):
            if source in values and values[source] > self.best.get(best, -1.0):
                self.best[best] = values[source]
                if best == "accuracy/best":
                    self.best_round = t
        if "accuracy/all" in values and values.get("accuracy/val", -1.0) > self.best_val:
            self.best_val, self.best_val_round = values["accuracy/val"], t
            self.best["accuracy/at_best_val"] = values["accuracy/all"]

    def elapsed_s(self) -> float:
        """Seconds since the first round began, without the time in which the run was not running."""
        return self.before_s + (perf_counter() - self.started if self.started else 0.0)


_FACTS = (
    "totals", "best", "best_round", "best_val", "best_val_round", "up_components", "down_components", "final",
    "rejected", "failed", "client_rounds", "restarts", "seconds",
)  # fmt: skip


@dataclass
class Stop:
    """Somebody may ask a run to end once the round that it is in is done and saved."""

    possible: bool = False  # whether rounds are being run
    requested: bool = False
    closing: bool = False  # whether the run has left its rounds, and its results are being written
    saved_round: Callable[[], bool] = lambda: True  # whether the last round that is done is saved already


FINAL_CHECKPOINT_S = 10.0
"""How long a run that fails waits for its last checkpoint, where actors that are to write it are busy."""

WATCH_EVERY_S = 2.0
"""How often it is looked whether a machine runs out of memory."""


def run_rounds(
    spec: RunSpec,
    schedule: Schedule,
    backend: Backend,
    trackers: Sequence[Tracker],
    progress: Progress,
    notify: Notify = lambda text: None,
    within_round: Callable[[int, int], None] = lambda done, of: None,
    checkpoints: CheckpointManager | None = None,
    stop: Stop | None = None,
    begin: Callable[[], None] = lambda: None,
    after_round: Callable[[int], None] = lambda t: None,
) -> str:
    """Run every round that is left, tell the trackers of each, and return the state's digest at the end.

    begin: starts the backend, and restores the checkpoint that the run goes on from; may be called again.

    `progress` is changed in place, so that whoever called knows how far a run came that was cut off. An exception
    leaves it at the last round that was handed to the trackers, which may have failed to take in that one.
    Raises `KeyboardInterrupt` after a round in which `stop` was requested.
    """
    eligible = [k for k in range(spec.num_clients) if spec.num_samples[k]]

    size = min(schedule.participants, len(eligible))

    def members(t: int) -> Sequence[ClientId]:
        return cohort(spec.seed, t, eligible, schedule.participants)

    with Recorder(trackers, backend.set_deadline) as record:
        survive = RecoveringBackend(
            backend,
            members,
            checkpoints,
            notify,
            schedule.max_attempts,
            record.wait,
            progress.rounds,
            progress.restarts,
        )
        survive(begin)
        if progress.t < 0:
            found = survive(lambda: backend.evaluate(range(spec.num_clients)))
            rows = [client_row(spec, 0, k, None, one) for k, one in found.items()]
            progress.latest = {row.client: row for row in rows}
            progress.final = compute_metrics(EVERYBODY, rows)
            record(0, progress.final, rows)
            progress.t = 0
        elif unknown := [k for k in range(spec.num_clients) if k not in progress.latest]:
            # Their rows were damaged. With evaluation.when after_receive a participant's last test was of another
            # moment: accuracy/all then counts it as it is now.
            found = survive(lambda: backend.evaluate(unknown))
            progress.latest |= {k: client_row(spec, progress.t, k, None, one) for k, one in found.items()}
        progress.started = perf_counter()
        monitor, looked_s = ResourceMonitor(), 0.0
        if stop is not None:
            stop.possible = True
        for t in range(progress.t + 1, schedule.rounds + 1):
            if stop is not None and stop.requested:
                _checkpoint(checkpoints, survive, progress, record)
                raise KeyboardInterrupt
            start = perf_counter()
            due = t % schedule.evaluate_every == 0 or t == schedule.rounds
            storage = checkpoints.begin(t) if checkpoints is not None and checkpoints.due(t) else None
            report = survive.round(t, due, partial(_within, within_round, size), storage)
            restarts = survive.restarts
            _tell_failures(t, report, schedule, notify)
            rows = [
                client_row(spec, t, k, client_report, report.evaluations.get(k))
                for k, client_report in report.client_reports.items()
            ]
            if due:
                missed = sorted(progress.stale - report.evaluations.keys())
                found = survive(lambda missed=missed: backend.evaluate(missed)) if missed else {}  # type: ignore[misc]
                rows += [client_row(spec, t, k, None, one) for k, one in found.items()]
                progress.latest |= {row.client: row for row in rows if row.total is not None}
                progress.stale.clear()
            else:
                progress.stale |= report.client_reports.keys()
            values = _values(report, rows, progress, due)
            progress.restarts = survive.restarts
            values["engine/restarts"] = survive.restarts
            values["time/round_s"] = perf_counter() - start
            values["time/total_s"] = progress.elapsed_s()
            values["memory/host_mb"], values["memory/gpu_peak_mb"] = backend.memory()
            if perf_counter() - looked_s > WATCH_EVERY_S:
                looked_s = perf_counter()
                for text in monitor.check_memory(backend.memory_usage()):
                    notify(text)
            for k in report.server.rejected:
                notify(f"round {t}: the upload of client {k} held a NaN or infinity and was left out")
            progress.final = progress.final | values
            survive(record.wait)  # a checkpoint may have been lost with an actor
            checkpoint = None
            # What was written builds on the checkpoint before: if that is lost, it would leave out what changed for it.
            if checkpoints and report.files and survive.restarts == restarts:
                checkpoint = partial(checkpoints.checkpoint, t, report.files, progress.facts())
            record(t, values, rows, checkpoint)
            progress.t = t
            after_round(t)
        _checkpoint(checkpoints, survive, progress, record)
        return survive(lambda: state_digest(backend))


def state_digest(backend: Backend) -> str:
    """SHA-256 over all client and server state: equal digests mean bit-identical runs."""
    clients, server = backend.digests()
    return combined_digest({f"client/{k:09d}": sha for k, sha in clients.items()} | {"server": server})


def _within(tell: Callable[[int, int], None], of: int, done: int) -> None:
    tell(done, of)


def _values(report: RoundReport, rows: Sequence[ClientRow], progress: Progress, due: bool) -> dict[str, Any]:
    client_reports = report.client_reports.values()
    values: dict[str, Any] = compute_metrics(PARTICIPANTS, [row for row in rows if row.participated])
    if due:
        values |= compute_metrics(EVERYBODY, list(progress.latest.values()))
        progress.take_best(rows[0].round, values)
        values |= progress.best
    for client_report in client_reports:
        for name, size in client_report.up.components.items():
            progress.up_components[name] = progress.up_components.get(name, 0) + size
        for name, size in client_report.down.components.items():
            progress.down_components[name] = progress.down_components.get(name, 0) + size
    progress.rejected += len(report.server.rejected)
    progress.failed += len(report.failed)
    progress.client_rounds += len(report.client_reports)
    progress.totals["bytes"] += values["comm/up_bytes"] + values["comm/down_bytes"]
    progress.totals["flops"] += values["compute/flops"] + report.server.flops
    values["comm/total_bytes"] = progress.totals["bytes"]
    values["compute/server_flops"] = report.server.flops
    values["compute/total_flops"] = progress.totals["flops"]
    values["time/aggregate_s"] = report.server.seconds
    for phase in ("train", "aggregate", "evaluate"):
        progress.seconds[phase] = progress.seconds.get(phase, 0.0) + values[f"time/{phase}_s"]
    values["engine/failed_clients"] = len(report.failed)
    values["engine/moved_clients"] = report.moved
    logged = sorted({name for client_report in client_reports for name in client_report.values})
    for name in logged:
        values[f"client/{name}"] = mean(
            [client_report.values[name] for client_report in client_reports if name in client_report.values]
        )
    return values | {f"server/{name}": value for name, value in report.server.values.items()}


def _checkpoint(
    checkpoints: CheckpointManager | None, survive: RecoveringBackend, progress: Progress, record: Recorder
) -> None:
    """See that the last round that is done is saved."""
    survive(record.wait)
    if checkpoints is None or checkpoints.saved_round == progress.t:
        return
    storage = checkpoints.begin(progress.t)
    survive(lambda: checkpoints.checkpoint(progress.t, survive.backend.save(progress.t, storage), progress.facts()))


def _tell_failures(t: int, report: RoundReport, schedule: Schedule, notify: Notify) -> None:
    """Name who failed. Raises `HookError` when more did than the run bears."""
    if not report.failed:
        return
    of = len(report.failed) + len(report.client_reports)
    if len(report.failed) > schedule.max_failed_fraction * of + 1e-9:
        first = next(iter(report.failed.values()))
        raise HookError(
            f"round {t}: {len(report.failed)} of {of} clients failed, more than failure.max_failed_fraction "
            f"({schedule.max_failed_fraction:g}) allows; the first: {first.reason}",
            first.trace,
        )
    for k, failed in report.failed.items():
        notify(f"round {t} goes on without client {k}: {failed.reason}")


class Recorder:
    """Tells the trackers of round t while round t + 1 runs: writing files and drawing progress take no round's time.

    One thread, so trackers hear of rounds in order; what a tracker raises reaches the caller with the next round.
    """

    def __init__(self, trackers: Sequence[Tracker], set_deadline: Callable[[float], None]) -> None:
        """hurry: lets a checkpoint that is being written wait for the busy for so many seconds only."""
        self.trackers, self.set_deadline = trackers, set_deadline
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self.telling: Future[None] | None = None

    def __enter__(self) -> Recorder:
        return self

    def __call__(
        self, t: int, values: dict[str, Any], rows: Sequence[ClientRow], then: Callable[[], None] | None = None
    ) -> None:
        """Hand a round over; `then` is called once everybody was told."""
        self.wait()
        ordered = sorted(rows, key=lambda row: row.client)
        self.telling = self.thread.submit(self._tell, t, values, ordered, then)

    def _tell(self, t: int, values: dict[str, Any], rows: Sequence[ClientRow], then: Callable[[], None] | None) -> None:
        for tracker in self.trackers:
            tracker.log(t, values, rows)
        if then is not None:
            then()

    def wait(self) -> None:
        """Until the last round that was handed over is told; raises what a tracker raised."""
        if self.telling is not None:
            telling, self.telling = self.telling, None
            telling.result()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.wait()
            else:
                self.set_deadline(0.0 if isinstance(error, KeyboardInterrupt) else FINAL_CHECKPOINT_S)
        finally:
            self.thread.shutdown(wait=True)
