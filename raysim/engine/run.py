"""The rounds of a run: sample, send, train, evaluate, aggregate, record. `run_round` is the page to read first."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from raysim.common.results import ClientRow, Tracker
from raysim.core.algorithm import ClientId
from raysim.core.state import combined_digest
from raysim.engine.backend import Backend
from raysim.engine.checkpoint.manager import CheckpointManager
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.policies.metrics import ALL_CLIENTS, compute_metrics
from raysim.engine.policies.sampling import Participation, cohort
from raysim.engine.policies.system import time_round
from raysim.engine.progress import Progress
from raysim.engine.recorder import Recorder
from raysim.engine.records import Coverage, MemoryReport, RoundReport, Timing, TrainingResult, client_row
from raysim.engine.recovery import Notify, RecoveringBackend
from raysim.engine.spec import RunSpec
from raysim.engine.stop import Stop
from raysim.engine.workers.hooks import HookError

_REMEDY = "a smaller training.lr, or training.clip, may prevent that"


@dataclass(frozen=True)
class Schedule:
    """How many rounds a run has, when it evaluates, and how many failures it tolerates."""

    rounds: int
    participants: int  # K
    evaluate_every: int = 1
    max_failed_fraction: float = 0.0
    max_attempts: int = 5
    stop: Stop = field(default_factory=Stop)
    participation: Participation = Participation()
    global_every: int | None = None  # rounds between tests on the whole published test set; None: `evaluate_every`

    def coverage(self, t: int) -> Coverage | None:
        """What clients are tested on after round `t`; None: they are not tested."""
        is_last = t == self.rounds
        if not is_last and t % self.evaluate_every:
            return None
        return "whole" if is_last or t % (self.global_every or 1) == 0 else "own"


@dataclass(frozen=True)
class Observers:
    """What a run reports to. Nothing here changes a result."""

    trackers: Sequence[Tracker] = ()
    notify: Notify = lambda text: None  # a sentence for the user
    within_round: Callable[[int, int], None] = lambda done, of: None  # clients done, of how many
    after_round: Callable[[int], None] = lambda t: None


def run_rounds(
    backend: Backend,
    schedule: Schedule,
    progress: Progress,
    observers: Observers,
    checkpoints: CheckpointManager | None = None,
    start: Callable[[], object] = lambda: None,
) -> str:
    """Run every round that is left, log each to the trackers, and return the state's digest at the end.

    start: starts the backend; when the run resumes, also restores its checkpoint and sets `progress` to that. It is
    called again when it raises `LostError`.

    `progress` is changed in place, so that the caller knows how far a run came that was cut off. An exception leaves
    it at the last round that was handed to the trackers, one of which may have failed to log it.
    Raises `KeyboardInterrupt` after a round in which `schedule.stop` was requested.
    """
    stop = schedule.stop

    def replay(t: int, failed: Collection[ClientId]) -> None:
        timing = partial(virtual_timing, backend.spec, schedule, t)
        run_round(backend, t, sample(backend.spec, schedule, t), skip=failed, timing=timing)

    with Recorder(observers.trackers) as record:
        recovering = RecoveringBackend(
            backend,
            replay,
            checkpoints,
            observers.notify,
            schedule.max_attempts,
            record.wait,
        )
        recovering(start)
        recovering.at = progress.rounds
        recovering.restarts += progress.restarts
        _evaluate_unknown(recovering, progress, record, "whole" if schedule.global_every is None else "own")
        progress.started = perf_counter()
        stop.possible = True
        told: set[str] = set()
        known = set(progress.diverged)  # clients whose divergence was reported
        for t in range(progress.t + 1, schedule.rounds + 1):
            if stop.requested:
                _save(recovering, progress, record)
                raise KeyboardInterrupt
            began = perf_counter()
            participants = sample(backend.spec, schedule, t)
            evaluate = schedule.coverage(t)
            storage = checkpoints.begin() if checkpoints is not None and checkpoints.due(t) else None
            within = partial(_within, observers.within_round, len(participants))
            timing = partial(virtual_timing, backend.spec, schedule, t)
            one_round = partial(run_round, backend, t, participants, evaluate, timing=timing)
            report = recovering.round(t, partial(one_round, progress=within, storage=storage))
            restarts = recovering.restarts
            _report_failures(t, report, schedule, observers.notify)
            _tell_once(_apart(backend.spec, report), told, observers.notify)
            rows = _client_rows(recovering, t, report, evaluate, progress)
            values = progress.count(report, rows, evaluate is not None)
            _report_diverged(t, progress.diverged - known, observers.notify)
            known |= progress.diverged
            memory = backend.memory()
            _tell_once(_on_disk(memory), told, observers.notify)
            _tell_once(_endless(progress), told, observers.notify)
            progress.restarts = recovering.restarts
            values["training/lr"] = backend.spec.local_in(t).lr
            values["engine/restarts"] = recovering.restarts
            values["time/round_s"] = perf_counter() - began
            values["time/total_s"] = progress.elapsed_s()
            values["memory/host_mb"], values["memory/gpu_peak_mb"] = memory.resident_mb, memory.gpu_peak_mb
            progress.final = progress.final | values
            recovering(record.wait)  # a checkpoint may have been lost with an actor
            checkpoint = None
            # A checkpoint builds on the one before: if that was lost, it would lack what changed in between.
            if checkpoints and report.files and recovering.restarts == restarts:
                checkpoint = partial(checkpoints.complete, t, report.files, progress.facts())
            record(t, values, rows, checkpoint)
            progress.t = t
            recovering(partial(observers.after_round, t))
        _save(recovering, progress, record)
        if progress.rejected and progress.rejected == progress.uploads:
            observers.notify(
                f"no upload of this run was used: all {progress.uploads} held a NaN or infinity, so the server learned "
                f"nothing, and the results show diverged clients, not the method; {_REMEDY}"
            )
        return recovering(lambda: state_digest(backend))


def sample(spec: RunSpec, schedule: Schedule, t: int) -> Sequence[ClientId]:
    """The clients that take part in round `t`: those that are selected, but those that drop out."""
    selected, given = _select(spec, schedule, t), schedule.participation
    return selected if given.system is None else given.system.finishing(_seed(spec, schedule), t, selected)


def virtual_timing(spec: RunSpec, schedule: Schedule, t: int, trained: TrainingResult) -> Timing | None:
    """When the participants of round `t` finish in virtual time, and which of them are late; None without a system."""
    system = schedule.participation.system
    if system is None:
        return None
    seconds = {k: system.seconds(k, one.flops, one.up.bytes, one.down.bytes) for k, one in trained.reports.items()}
    failed = len(trained.failed)
    dropped = len(_select(spec, schedule, t)) - len(seconds) - failed
    return time_round(seconds, schedule.participants, schedule.participation.deadline_s, dropped, failed)


def _select(spec: RunSpec, schedule: Schedule, t: int) -> Sequence[ClientId]:
    given = schedule.participation
    return cohort(_seed(spec, schedule), t, spec.eligible, schedule.participants, spec.num_samples, given)


def _seed(spec: RunSpec, schedule: Schedule) -> int:
    """The seed of cohorts."""
    return spec.seed if schedule.participation.seed is None else schedule.participation.seed


def run_round(
    backend: Backend,
    t: int,
    participants: Sequence[ClientId],
    evaluate: Coverage | None = None,
    skip: Collection[ClientId] = (),
    progress: Callable[[int], None] = lambda done: None,
    storage: Storage | None = None,
    timing: Callable[[TrainingResult], Timing | None] = lambda trained: None,
) -> RoundReport:
    """One round. Each call queues work after that of the calls before it and returns a `Pending`; `result` waits.

    Evaluation is queued after training, so that it can run while the server aggregates.

    evaluate: what participants are tested on; None: they are not tested.
    skip: participants that failed when this round ran before. progress: called with the number of clients done.
    storage: where to save the state after the round. timing: what it takes in virtual time; who is late does not count.
    """
    when = backend.spec.evaluate_when if evaluate else None
    broadcast = backend.send(t, participants)
    groups = backend.spec.groups(participants)
    training = backend.train(t, groups, broadcast, evaluate if when == "after_receive" else None, skip, progress)
    evaluation = backend.evaluate(groups if when == "after_update" else (), evaluate or "own")
    trained = training.result()
    timed = timing(trained)
    late = timed.late if timed else ()
    discarded = backend.discard(late)
    aggregation = backend.aggregate(t, trained.uploads, late)
    files = backend.save(t, storage) if storage else None
    evaluations = evaluation.result() or trained.evaluations
    server = aggregation.result()
    discarded.result()
    reports = {k: report for k, report in trained.reports.items() if k not in late}
    evaluations = {k: evaluations[k] for k in reports if k in evaluations}
    return RoundReport(reports, evaluations, server, trained.moved, trained.failed, files, timed)


def state_digest(backend: Backend) -> str:
    """SHA-256 over all client and server state: equal digests mean bit-identical runs."""
    clients, server = backend.digests()
    return combined_digest({f"client/{k:09d}": sha for k, sha in clients.items()} | {"server": server})


def _within(within_round: Callable[[int, int], None], of: int, done: int) -> None:
    within_round(done, of)


def _evaluate_unknown(recovering: RecoveringBackend, progress: Progress, record: Recorder, coverage: Coverage) -> None:
    """Test all clients before round 1; in a resumed run those whose latest row is missing."""
    backend = recovering.backend
    unknown = [k for k in range(backend.spec.num_clients) if k not in progress.latest.measured]
    if not unknown:
        return
    # In a resumed run with evaluation.when after_receive, a participant's lost row was of another moment: accuracy/all
    # then counts the client as it is now.
    found = recovering(lambda: backend.evaluate([(k,) for k in unknown], coverage).result())
    rows = [client_row(backend.spec, progress.rounds, k, None, one) for k, one in found.items()]
    progress.latest.update(rows)
    if progress.t < 0:
        progress.final = compute_metrics(ALL_CLIENTS, progress.latest)
        record(0, progress.final, rows)
        progress.t = 0


def _client_rows(
    recovering: RecoveringBackend, t: int, report: RoundReport, evaluate: Coverage | None, progress: Progress
) -> list[ClientRow]:
    """The rows of round `t`; with `evaluate` also of clients that changed since they were last tested."""
    backend = recovering.backend
    virtual_s = report.timing.seconds if report.timing else {}
    rows = [
        client_row(backend.spec, t, k, client_report, report.evaluations.get(k), virtual_s.get(k))
        for k, client_report in report.client_reports.items()
    ]
    if evaluate is None:
        progress.stale |= report.client_reports.keys()
        return rows
    if missed := sorted(progress.stale - report.evaluations.keys()):
        found = recovering(lambda: backend.evaluate([(k,) for k in missed], evaluate).result())
        rows += [client_row(backend.spec, t, k, None, one) for k, one in found.items()]
    progress.latest.update(row for row in rows if row.total is not None)
    progress.stale.clear()
    return rows


def _save(recovering: RecoveringBackend, progress: Progress, record: Recorder) -> None:
    """Save the last round that is done, unless it is saved already."""
    recovering(record.wait)
    checkpoints = recovering.checkpoints
    if checkpoints is None or checkpoints.saved_round == progress.t:
        return
    storage = checkpoints.begin()
    recovering(lambda: checkpoints.complete(progress.t, recovering.backend.save(progress.t, storage), progress.facts()))


def _tell_once(texts: Iterable[str], told: set[str], notify: Notify) -> None:
    """Notify the user of what was not told before."""
    for text in texts:
        if text not in told:
            told.add(text)
            notify(text)


def _apart(spec: RunSpec, report: RoundReport) -> Iterator[str]:
    """Which clients were to be trained together and could not be, and why."""
    for k, one in report.client_reports.items():
        if one.apart:
            yield f"clients with {spec.arch(k)} are trained one by one (training.together): {one.apart}"


def _on_disk(memory: MemoryReport) -> Iterator[str]:
    """That states of clients are not kept in memory."""
    if memory.on_disk_mb:
        size_gb = memory.on_disk_mb * 2**20 / 1e9
        yield f"the clients' states take {size_gb:.3g} GB, more than resources.memory_gb allows: they are kept on disk"


def _endless(progress: Progress) -> Iterator[str]:
    """That virtual time has overflowed."""
    if math.isinf(progress.totals.get("virtual_s", 0.0)):
        yield (
            "virtual time is more than a floating-point number can hold, and plots leave such rounds out: give "
            "greater speeds or smaller latencies in the section `system`"
        )


def _report_diverged(t: int, clients: Collection[ClientId], notify: Notify) -> None:
    """Notify the user of clients that have diverged in round `t` for the first time."""
    if clients:
        notify(
            f"round {t}: the training loss, the test loss or the upload of {_named(sorted(clients))} is NaN or "
            f"infinite for the first time; the accuracy counts such clients as they are; {_REMEDY}"
        )


def _named(clients: Sequence[ClientId]) -> str:
    """The first ten of the clients by their ids, and how many more there are."""
    more = f" and {len(clients) - 10} more" if len(clients) > 10 else ""
    return f"{'client' if len(clients) == 1 else 'clients'} {', '.join(map(str, clients[:10]))}{more}"


def _report_failures(t: int, report: RoundReport, schedule: Schedule, notify: Notify) -> None:
    """Notify the user of failed clients and refused uploads. Raises `HookError` when too many clients failed."""
    if rejected := report.server.rejected:
        if len(rejected) == len(report.uploaded):
            notify(f"round {t}: all uploads held a NaN or infinity and were left out; the server learned nothing")
        else:
            notify(f"round {t}: uploads that held a NaN or infinity were left out, those of {_named(rejected)}")
    if report.timing is not None and not report.client_reports and not report.failed:
        gone = report.timing.dropped
        why = f"all {gone} selected clients dropped out or were late" if gone else "no client was available"
        notify(f"round {t}: no updates to aggregate: {why}")
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
