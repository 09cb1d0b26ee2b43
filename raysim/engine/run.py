"""The rounds of a run: sample, send, train, evaluate, aggregate, record. Read `run_round` first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from raysim.common.results import ClientRow, Tracker
from raysim.core.algorithm import ClientId
from raysim.core.state import combined_digest
from raysim.engine.backend import Backend
from raysim.engine.checkpoint.manager import CheckpointManager
from raysim.engine.policies.metrics import ALL_CLIENTS, CURRENT, Conditions, compute_metrics, round_metrics
from raysim.engine.policies.sampling import Participation, cohort
from raysim.engine.policies.stopping import StoppingRule
from raysim.engine.policies.system import time_round
from raysim.engine.progress import Progress
from raysim.engine.recorder import Recorder
from raysim.engine.records import (
    ClientEvaluation,
    Coverage,
    CurrentTests,
    RoundReport,
    Timing,
    TrainingResult,
    client_row,
)
from raysim.engine.recovery import RecoveringBackend
from raysim.engine.run_warnings import RunWarnings
from raysim.engine.spec import RunSpec
from raysim.engine.stop import Stop


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop over rounds: number of rounds, participants, intervals of tests, and tolerated failures."""

    rounds: int
    participants: int  # K
    evaluate_every: int = 1
    max_failed_fraction: float = 0.0
    max_attempts: int = 5
    stop: Stop = field(default_factory=Stop)
    participation: Participation = Participation()
    global_every: int | None = None  # rounds between tests on the whole published test set; None: `evaluate_every`
    stopping: StoppingRule | None = None
    all_every: int | None = None  # rounds between tests of all clients with the server's current message; None: none

    def coverage(self, t: int) -> Coverage | None:
        """Return the samples on which clients are tested in round `t`; None: no test."""
        is_last = t == self.rounds
        if not is_last and t % self.evaluate_every:
            return None
        return "whole" if is_last or t % (self.global_every or 1) == 0 else "own"

    def extra(self, t: int) -> bool:
        """Whether clients are tested in round `t` only because it is the last round."""
        return t == self.rounds and t % self.evaluate_every > 0

    def tests_all(self, t: int) -> bool:
        """Whether all clients are tested with the server's current message after round `t`; 0: before round 1."""
        if self.all_every is None or self.coverage(t) is None:
            return False
        return t == self.rounds or t % self.all_every == 0

    def watches(self, t: int) -> bool:
        """Whether `stopping` takes in round `t`: it tests what the last round tests, but not because it is the last.

        A run that is resumed for more rounds thus ends in the same round as a run that had them from the start.
        """
        return all(t % every == 0 for every in (self.evaluate_every, self.global_every or 1, self.all_every or 1))


@dataclass(frozen=True)
class Observers:
    """Receivers of a run's reports. They never change a result."""

    trackers: Sequence[Tracker] = ()
    within_round: Callable[[int, int], None] = lambda done, of: None  # (clients done, all participants)
    after_round: Callable[[int], None] = lambda t: None
    at_once: bool = False  # whether a round is logged before the next one begins, instead of while it runs


def run_rounds(
    backend: Backend,
    settings: LoopSettings,
    progress: Progress,
    observers: Observers,
    checkpoints: CheckpointManager | None = None,
    start: Callable[[], object] = lambda: None,
) -> str:
    """Run the remaining rounds, log each to the trackers, and return the digest of the final state.

    start: starts the backend; for a resumed run it also restores the checkpoint and `progress`. It is called again if
    it raises `LostError`.

    `progress` is changed in place, so that the caller knows the last round of an interrupted run. After an exception
    it is at the last round that was passed to the trackers, which a tracker may have failed to log. Raises
    `KeyboardInterrupt` after a round in which `settings.stop` was requested, and after the round that it names.
    """
    with Recorder(observers.trackers) as record:
        loop = Loop(backend, settings, progress, observers, checkpoints, record)
        loop.start(start)
        for t in range(progress.t + 1, settings.rounds + 1):
            if settings.stop.due(progress.t):
                loop.save()
                raise KeyboardInterrupt
            if loop.ends_early():
                break
            loop.leave_drained_nodes()
            began = perf_counter()
            evaluate = settings.coverage(t)
            report = loop.report(t, evaluate)
            loop.warnings.check_failures(t, report)
            rows = loop.client_rows(t, report, evaluate)
            metrics = loop.metrics(t, report, rows, evaluate is not None, began)
            loop.watch(t, metrics)
            loop.warnings.check_round(t, report, progress)
            loop.record_round(t, metrics, rows)
        loop.save()
        loop.warnings.check_run(progress)
        return loop.recovering(lambda: state_digest(backend))


class Loop:
    """The steps of `run_rounds`, which are repeated from the last checkpoint if an actor dies."""

    def __init__(
        self,
        backend: Backend,
        settings: LoopSettings,
        progress: Progress,
        observers: Observers,
        checkpoints: CheckpointManager | None,
        record: Recorder,
    ) -> None:
        self.backend, self.settings, self.progress, self.observers = backend, settings, progress, observers
        self.checkpoints, self.record = checkpoints, record
        self._best_val: tuple[int, Mapping[str, Any]] | None = None  # best round by validation, facts of its checkpoint
        self.warnings = RunWarnings(backend, settings.max_failed_fraction)
        self.recovering = RecoveringBackend(backend, self._replay, checkpoints, settings.max_attempts, record.wait)

    def start(self, start: Callable[[], object]) -> None:
        """Start or resume the backend, and test all clients of unknown accuracy."""
        self.recovering(start)
        self.recovering.at = self.progress.rounds
        self.recovering.restarts += self.progress.restarts
        self._test_unknown()
        self.warnings.diverged = set(self.progress.diverged)
        self.progress.started = perf_counter()
        self.settings.stop.possible = True

    def leave_drained_nodes(self) -> None:
        """Move actors from nodes that are being drained to other nodes, by a checkpoint of the last round.

        Without checkpoints, they stay: moving them would repeat all rounds, as the death of the node does.
        """
        if self.checkpoints is not None and (why := self.recovering(self.backend.drain_reason)):
            self.save()
            self.recovering.move(why)

    def report(self, t: int, evaluate: Coverage | None) -> RoundReport:
        """Run round `t`, again if an actor dies in it, and return its report."""
        participants = sample(self.backend.spec, self.settings, t)
        call = partial(
            run_round,
            self.backend,
            t,
            participants,
            evaluate,
            progress=lambda done: self.observers.within_round(done, len(participants)),
            timing=self._timing(t),
            all_clients=self.settings.tests_all(t),
        )
        return self.recovering.round(t, call)

    def client_rows(self, t: int, report: RoundReport, evaluate: Coverage | None) -> list[ClientRow]:
        """Return the rows of round `t`: of its participants and of other clients that were tested.

        With `evaluate`, clients that changed since their last test are tested now.
        """
        progress, spec = self.progress, self.backend.spec
        if evaluate is None:
            progress.stale |= report.client_reports.keys()
        missed = [] if evaluate is None else sorted(progress.stale - report.evaluations.keys())
        tested = {**report.evaluations, **(self._test(missed, evaluate) if evaluate and missed else {})}
        virtual_s = report.timing.seconds if report.timing else {}
        rows = [
            client_row(
                spec, t, k, report.client_reports.get(k), tested.get(k), virtual_s.get(k),
                report.before.get(k), report.current.get(k),
            )
            for k in sorted({*report.client_reports, *tested, *report.current})
        ]  # fmt: skip
        if evaluate is None:
            return rows
        progress.latest.update(row for row in rows if row.total is not None)
        progress.stale.clear()
        if self.settings.extra(t) and spec.evaluate_when == "after_receive":
            # These clients were tested before training. If the run is resumed for more rounds, the next test includes
            # them after training, as if it had had these rounds from the start.
            progress.stale |= report.client_reports.keys()
        return rows

    def metrics(
        self, t: int, report: RoundReport, rows: Sequence[ClientRow], evaluated: bool, began: float
    ) -> dict[str, Any]:
        """Return all metrics of round `t`, and add the round to the progress.

        evaluated: whether all clients' latest tests are known. began: the start of the round, by `perf_counter`.
        """
        progress, memory = self.progress, self.backend.memory()
        self.warnings.check_memory(memory)
        conditions = Conditions(self.backend.spec.local_in(t).lr, perf_counter() - began, memory)
        metrics = round_metrics(report, rows, progress.latest if evaluated else None, conditions)
        progress.add(report, rows, metrics)
        progress.restarts = self.recovering.restarts
        return metrics | progress.cumulative(evaluated)

    def watch(self, t: int, metrics: Mapping[str, Any]) -> None:
        """Update the metric that may end the run early."""
        rule = self.settings.stopping
        if rule is not None and self.settings.watches(t) and rule.metric in metrics:
            self.progress.watched = rule.watch(self.progress.watched, t, metrics[rule.metric])

    def ends_early(self) -> bool:
        """Return whether the run ends after the last round that is done; set `progress.ended_early` to the reason."""
        rule, watched = self.settings.stopping, self.progress.watched
        if rule is not None and watched is not None and watched.round == self.progress.t:
            self.progress.ended_early = rule.reason(watched)
        return bool(self.progress.ended_early)

    def record_round(self, t: int, metrics: dict[str, Any], rows: Sequence[ClientRow]) -> None:
        """Pass round `t` to the trackers, and save the state after it if a checkpoint is due."""
        progress, checkpoints = self.progress, self.checkpoints
        progress.final = progress.final | metrics
        # A checkpoint builds on the previous one, which may have been lost with an actor.
        self.recovering(self.record.wait)
        complete = None
        if checkpoints is not None and self._saves(checkpoints, t):
            # Save after all tests of the round: an actor that does not reach the storage blocks until the recorder's
            # thread has taken its files, so it would not answer a test.
            storage = checkpoints.begin()
            files = self.recovering(lambda: self.backend.save(t, storage))
            facts = progress.facts()
            complete = partial(checkpoints.complete, t, files, facts)
            if progress.best_val_round == t:
                self._best_val = (t, facts)
        self.record(t, metrics, rows, complete)
        progress.t = t
        self._wait_if_at_once()
        self.recovering(partial(self.observers.after_round, t))

    def _wait_if_at_once(self) -> None:
        if self.observers.at_once:
            self.recovering(self.record.wait)

    def save(self) -> None:
        """Save the state after the last round that is done, unless it is saved already."""
        self.recovering(self.record.wait)
        checkpoints, progress = self.checkpoints, self.progress
        if checkpoints is None or checkpoints.saved_round == progress.t:
            return
        storage = checkpoints.begin()
        self.recovering(
            lambda: checkpoints.complete(progress.t, self.backend.save(progress.t, storage), progress.facts())
        )

    def _saves(self, checkpoints: CheckpointManager, t: int) -> bool:
        """Return whether the state after round `t` is saved: it is due, or to be kept as the best by validation."""
        return checkpoints.due(t) or (checkpoints.keep_best_val and self.progress.best_val_round == t)

    def _test_unknown(self) -> None:
        """Test all clients before round 1; in a resumed run, test the clients with a missing latest row."""
        progress, spec = self.progress, self.backend.spec
        unknown = [k for k in range(spec.num_clients) if k not in progress.latest.measured]
        if not unknown:
            return
        # With evaluation.when: after_receive, a participant's lost row was measured before training. In a resumed run,
        # accuracy/all then counts the client after training.
        tested = self._test(unknown, "whole" if self.settings.global_every is None else "own")
        current: CurrentTests = {}
        if progress.t < 0 and self.settings.tests_all(0):
            current = self.recovering(lambda: self.backend.evaluate_current(1).result())
            self.warnings.check_tests(0, current)
        rows = [client_row(spec, progress.rounds, k, None, one, current=current.get(k)) for k, one in tested.items()]
        progress.latest.update(rows)
        if progress.t < 0:
            progress.final = compute_metrics(ALL_CLIENTS, progress.latest) | compute_metrics(CURRENT, rows)
            self.record(0, progress.final, rows)
            progress.t = 0
            self._wait_if_at_once()

    def _test(self, clients: Sequence[ClientId], coverage: Coverage) -> Mapping[ClientId, ClientEvaluation]:
        return self.recovering(lambda: self.backend.evaluate([(k,) for k in clients], coverage).result())

    def _replay(self, t: int, failed: Collection[ClientId]) -> None:
        """Run round `t` again, without the clients that failed in it."""
        participants = sample(self.backend.spec, self.settings, t)
        report = run_round(self.backend, t, participants, skip=failed, timing=self._timing(t))
        self.warnings.check_repeated(t, report, failed)
        checkpoints = self.checkpoints
        if checkpoints and checkpoints.keep_best_val and self._best_val and self._best_val[0] == t:
            # Replayed rounds have no checkpoint, or a damaged one, and no later round restores this state.
            checkpoints.complete(t, self.backend.save(t, checkpoints.begin()), self._best_val[1])

    def _timing(self, t: int) -> Callable[[TrainingResult], Timing | None]:
        return partial(virtual_timing, self.backend.spec, self.settings, t)


def sample(spec: RunSpec, settings: LoopSettings, t: int) -> Sequence[ClientId]:
    """Return the clients that take part in round `t`: those selected, except those that drop out."""
    selected, system = _select(spec, settings, t), settings.participation.system
    return selected if system is None else system.finishing(_seed(spec, settings), t, selected)


def virtual_timing(spec: RunSpec, settings: LoopSettings, t: int, trained: TrainingResult) -> Timing | None:
    """Return when the participants of round `t` finish in virtual time, and which are late; None without a system."""
    system = settings.participation.system
    if system is None:
        return None
    seconds = {k: system.seconds(k, one.flops, one.up.bytes, one.down.bytes) for k, one in trained.reports.items()}
    failed = len(trained.failed)
    dropped = len(_select(spec, settings, t)) - len(seconds) - failed
    return time_round(seconds, settings.participants, settings.participation.deadline_s, dropped, failed)


def _select(spec: RunSpec, settings: LoopSettings, t: int) -> Sequence[ClientId]:
    seed, size = _seed(spec, settings), settings.participants
    return cohort(seed, t, spec.eligible, size, spec.num_samples, settings.participation)


def _seed(spec: RunSpec, settings: LoopSettings) -> int:
    """Return the seed of cohorts."""
    return spec.seed if settings.participation.seed is None else settings.participation.seed


def run_round(
    backend: Backend,
    t: int,
    participants: Sequence[ClientId],
    evaluate: Coverage | None = None,
    skip: Collection[ClientId] = (),
    progress: Callable[[int], None] = lambda done: None,
    timing: Callable[[TrainingResult], Timing | None] = lambda trained: None,
    all_clients: bool = False,
) -> RoundReport:
    """Run one round. Each call to the backend queues work after earlier calls and returns a `Pending`; `result` waits.

    Evaluation is queued after training, so that it can run while the server aggregates.

    evaluate: samples on which participants are tested; None: no test.
    skip: participants that failed when this round ran before. progress: called with the number of clients done.
    timing: computes the virtual times; late clients do not count.
    all_clients: also test all clients with the message that the server would send next.
    """
    when = backend.spec.evaluate_when if evaluate else None
    broadcast = backend.send(t, participants)
    groups = backend.spec.groups(participants)
    before: Coverage | None = "own" if when == "both" else evaluate if when == "after_receive" else None
    training = backend.train(t, groups, broadcast, before, skip, progress)
    evaluation = backend.evaluate(groups if when in ("after_update", "both") else (), evaluate or "own")
    trained = training.result()
    timed = timing(trained)
    late = timed.late if timed else ()
    discarded = backend.discard(late)
    aggregation = backend.aggregate(t, trained.uploads, late)
    current = backend.evaluate_current(t + 1) if all_clients else None
    evaluations = evaluation.result() or trained.evaluations
    server = aggregation.result()
    discarded.result()
    reports = {k: report for k, report in trained.reports.items() if k not in late}
    evaluations = {k: evaluations[k] for k in reports if k in evaluations}
    before_training = {k: trained.evaluations[k] for k in reports} if when == "both" else {}
    tested = current.result() if current else {}
    return RoundReport(reports, evaluations, server, trained.moved, trained.failed, timed, before_training, tested)


def state_digest(backend: Backend) -> str:
    """Return the SHA-256 over all client and server state: equal digests mean bit-identical runs."""
    clients, server = backend.digests()
    return combined_digest({f"client/{k:09d}": sha for k, sha in clients.items()} | {"server": server})
