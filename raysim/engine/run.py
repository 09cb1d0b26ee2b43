"""The rounds of a run: draw the cohort, send, train, evaluate, aggregate, record. Read `run_round` first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from numpy.typing import NDArray

from raysim.common.results import ClientRow
from raysim.core.algorithm import ClientId
from raysim.core.state import combined_digest
from raysim.engine.backend import Backend
from raysim.engine.checkpoint.store import Checkpoint, CheckpointManager, CheckpointStore
from raysim.engine.metrics import (
    Conditions,
    all_clients_metrics,
    current_metrics,
    round_metrics,
)
from raysim.engine.plan import Plan
from raysim.engine.policies.asynchronous import Flight
from raysim.engine.policies.evaluations import Coverage
from raysim.engine.policies.privacy import Account
from raysim.engine.policies.system import Timing
from raysim.engine.progress import Progress, flight_of
from raysim.engine.recorder import Recorder
from raysim.engine.records import ClientEvaluation, CurrentTests, RoundReport, TrainingResult, client_row
from raysim.engine.recovery import RecoveringBackend
from raysim.engine.run_warnings import RunWarnings
from raysim.engine.stop import Stop

T = TypeVar("T")


class Rounds:
    """The rounds of a run. Call `start`, then iterate; each step of the iteration runs one round.

    Every call to the backend is repeated from the last checkpoint if an actor dies in it.

    Attributes:
        progress: what is known after the last round that was recorded; the run's owner reads it at any time.
        participants: the clients that trained in the last round.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        record: Recorder,
        checkpoints: CheckpointManager | None = None,
        *,
        progress: Progress | None = None,
        stop: Stop | None = None,
        within: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        """Store the parts. checkpoints: None: do not save any. within: function of (clients done, participants)."""
        self.plan, self.backend, self.record, self.checkpoints = plan, backend, record, checkpoints
        self.progress, self.stop, self.within = progress or Progress(), stop or Stop(), within
        self.participants: Sequence[ClientId] = ()
        # Best round by validation, and the facts of its checkpoint.
        self._best_val: tuple[int, Mapping[str, Any]] | None = None
        self.account = Account(plan.privacy, plan.cohort) if plan.privacy and plan.privacy.noise_multiplier else None
        self.warnings = RunWarnings(backend, plan.max_failed_fraction)
        self.recovering = RecoveringBackend(backend, self._replay, checkpoints, plan.max_attempts, record.wait)

    def start(
        self,
        raw: Callable[[], NDArray[Any]],
        store: CheckpointStore | None = None,
        truncate: Callable[[int], Mapping[ClientId, ClientRow]] = lambda t: {},
    ) -> float | None:
        """Start the backend. If the run is resumed, restore its newest intact checkpoint.

        raw: see `Backend.start`. store: the run's checkpoints; None: the run is new. truncate: removes the results of
        later rounds, all for -1, and returns each client's last test by then.
        Returns the seconds until all actors had started; None if there are none.
        """

        def begin() -> tuple[float | None, Checkpoint | None]:
            startup_s = self.backend.start(self.plan, raw)
            checkpoint = store.latest() if store else None
            if store and checkpoint:
                store.restore(checkpoint, self.backend.restore)
            return startup_s, checkpoint

        startup_s, checkpoint = self.recovering(begin)
        if store:
            latest = truncate(checkpoint.round if checkpoint else -1)
            if checkpoint:
                self.progress.resume(checkpoint.round, checkpoint.facts, latest)
        return startup_s

    def __iter__(self) -> Iterator[int]:
        """Run the remaining rounds, and yield the number of each. Rounds are logged to the trackers and saved.

        After an exception, `progress` is at the last round that was passed to the trackers, which a tracker may have
        failed to log. Raises `KeyboardInterrupt` after a round in which `stop` was requested, and after the round that
        it names.
        """
        plan, progress = self.plan, self.progress
        self._begin()
        for t in range(progress.t + 1, plan.num_rounds + 1):
            if self.stop.due(progress.t):
                self._save()
                raise KeyboardInterrupt
            if self._ends_early():
                break
            began, evaluate = perf_counter(), plan.evaluations.coverage(t)
            report = self.recovering(self._round(t, evaluate))
            self.recovering.completed(t, report)
            self.warnings.check_failures(t, report)
            rows = self._client_rows(t, report, evaluate)
            metrics = self._metrics(t, report, rows, evaluate is not None, began)
            self._watch(t, metrics)
            self.warnings.check_round(t, report, progress)
            self._record(t, metrics, rows)
            yield t
        self._save()

    def state_digest(self) -> str:
        """Return the digest of the state after the last round. Equal digests mean bit-identical runs."""
        return self.recovering(lambda: state_digest(self.backend))

    def _begin(self) -> None:
        """Prepare the first round of this process. Before its first round, a run tests all clients."""
        self.recovering.at = self.progress.rounds
        self.recovering.restarts += self.progress.restarts
        if self.progress.t < 0:
            self._test_initial()
        self.warnings.diverged = set(self.progress.diverged)
        self.progress.started = perf_counter()
        self.stop.possible = True

    def _round(self, t: int, evaluate: Coverage | None) -> Callable[[], RoundReport]:
        """Draw the cohort of round `t`, and return the call that runs the round."""
        flight = self.progress.flight
        self.participants = participants = self.plan.cohort(t, flight.arrivals)
        return partial(
            run_round,
            self.backend,
            t,
            participants,
            evaluate,
            progress=lambda done: self.within(done, len(participants)),
            timing=partial(virtual_timing, self.plan, t, flight),
            all_clients=self.plan.evaluations.tests_all(t),
        )

    def _client_rows(self, t: int, report: RoundReport, evaluate: Coverage | None) -> list[ClientRow]:
        """Return the rows of round `t`: of its participants, and of other clients that were tested in it.

        With `evaluate`, clients that changed since their last test are tested now.
        """
        progress, plan = self.progress, self.plan
        if evaluate is None:
            progress.stale |= report.client_reports.keys()
        missed = [] if evaluate is None else sorted(progress.stale - report.evaluations.keys())
        tested = {**report.evaluations, **(self._test(missed, evaluate) if evaluate and missed else {})}
        virtual_s = report.timing.seconds if report.timing else {}
        rows = [
            client_row(
                plan, t, k, report.client_reports.get(k), tested.get(k), virtual_s.get(k),
                report.before.get(k), report.current.get(k),
            )
            for k in sorted({*report.client_reports, *tested, *report.current})
        ]  # fmt: skip
        if evaluate is None:
            return rows
        progress.latest |= {row.client: row for row in rows if row.total is not None}
        progress.stale.clear()
        if self.plan.evaluations.extra(t) and plan.evaluate_when == "after_receive":
            # These clients were tested before training, and only because this is the last round. If the run is resumed
            # for more rounds, the next test includes them, as in a run that had these rounds from the start.
            progress.stale |= report.client_reports.keys()
        return rows

    def _metrics(
        self, t: int, report: RoundReport, rows: Sequence[ClientRow], evaluated: bool, began: float
    ) -> dict[str, Any]:
        """Return all metrics of round `t`; also add the round to the progress.

        evaluated: whether all clients' latest tests are known. began: the start of the round, by `perf_counter`.
        """
        progress = self.progress
        epsilon = self.account.epsilon(t) if self.account and evaluated else None
        conditions = Conditions(self.plan.local_in(t).lr, perf_counter() - began, self.backend.memory(), epsilon)
        metrics = round_metrics(report, rows, progress.latest if evaluated else None, conditions, self.plan.held_out)
        progress.add(report, rows, metrics)
        progress.restarts = self.recovering.restarts
        return metrics | progress.cumulative(evaluated)

    def _watch(self, t: int, metrics: Mapping[str, Any]) -> None:
        """Update the record of the metric that may end the run early."""
        rule = self.plan.stopping
        if rule is not None and self.plan.evaluations.watches(t) and rule.metric in metrics:
            self.progress.watched = rule.watch(self.progress.watched, t, metrics[rule.metric])

    def _ends_early(self) -> bool:
        """Return whether the run ends after the last completed round; store the reason in `progress.ended_early`."""
        rule, watched = self.plan.stopping, self.progress.watched
        if rule is not None and watched is not None and watched.round == self.progress.t:
            self.progress.ended_early = rule.reason(watched)
        return bool(self.progress.ended_early)

    def _record(self, t: int, metrics: dict[str, Any], rows: Sequence[ClientRow]) -> None:
        """Pass round `t` to the trackers, and save the state after it if a checkpoint is due."""
        progress, checkpoints = self.progress, self.checkpoints
        progress.final = progress.final | metrics
        # Wait for the previous checkpoint, on which this one builds, and recover if an actor died with a part of it.
        self.recovering(self.record.wait)
        complete = None
        if checkpoints is not None and checkpoints.due(t, progress.best_val_round == t):
            # Save after all tests of the round: an actor without access to the storage blocks until the recorder's
            # thread has taken its files, so it could not answer a test.
            files = self.recovering(lambda: self.backend.save(t, checkpoints.begin()))
            facts = progress.facts()
            complete = partial(checkpoints.complete, t, files, facts)
            if progress.best_val_round == t:
                self._best_val = (t, facts)
        self.record(t, metrics, rows, complete)
        progress.t = t
        self._wait_if_at_once()

    def _wait_if_at_once(self) -> None:
        if self.record.at_once:
            self.recovering(self.record.wait)

    def _save(self) -> None:
        """Save the state after the last completed round, unless it is already saved."""
        self.recovering(self.record.wait)
        checkpoints, progress = self.checkpoints, self.progress
        if checkpoints is None or checkpoints.saved_round == progress.t:
            return
        t = progress.t
        self.recovering(lambda: checkpoints.complete(t, self.backend.save(t, checkpoints.begin()), progress.facts()))

    def _test_initial(self) -> None:
        """Test all clients before round 1, and record the results as round 0."""
        plan, progress = self.plan, self.progress
        clients = [k for k in range(plan.num_clients) if k not in plan.held_out]
        tested = self._test(clients, "whole" if plan.evaluations.global_every is None else "own")
        current: CurrentTests = {}
        if plan.evaluations.tests_all(0):
            current = self.recovering(lambda: self.backend.evaluate_current(1).result())
            self.warnings.check_tests(0, current)
        rows = [
            client_row(plan, 0, k, None, tested.get(k), current=current.get(k)) for k in sorted({*tested, *current})
        ]
        progress.latest |= {row.client: row for row in rows if row.total is not None}
        progress.final = all_clients_metrics(progress.latest) | current_metrics(rows, plan.held_out)
        self.record(0, progress.final, rows)
        progress.t = 0
        self._wait_if_at_once()

    def _test(self, clients: Sequence[ClientId], coverage: Coverage) -> Mapping[ClientId, ClientEvaluation]:
        return self.recovering(lambda: self.backend.evaluate([(k,) for k in clients], coverage).result())

    def _replay(self, base: Checkpoint | None, until: int, failed: Mapping[int, Collection[ClientId]]) -> None:
        """Repeat the rounds after the checkpoint. failed: round -> clients that failed in it."""
        flight = flight_of(base.facts) if base else Flight()
        for t in range((base.round if base else 0) + 1, until + 1):
            flight = self._repeat(t, flight, failed.get(t, ()))

    def _repeat(self, t: int, flight: Flight, failed: Collection[ClientId]) -> Flight:
        """Repeat round `t` without the clients in `failed`. flight: before the round; returns the flight after it."""
        participants = self.plan.cohort(t, flight.arrivals)
        timing = partial(virtual_timing, self.plan, t, flight)
        report = run_round(self.backend, t, participants, skip=failed, timing=timing)
        self.warnings.check_repeated(t, report, failed)
        checkpoints = self.checkpoints
        if checkpoints and checkpoints.keep_best_val and self._best_val and self._best_val[0] == t:
            # The checkpoint of this repeated round is missing or damaged, and no later round has this state, so save it
            # now.
            checkpoints.complete(t, self.backend.save(t, checkpoints.begin()), self._best_val[1])
        return (report.timing and report.timing.flight) or flight


def virtual_timing(plan: Plan, t: int, flight: Flight, trained: TrainingResult) -> Timing | None:
    """Return when participants of round `t` finish in virtual time, and which are late; None without `system`.

    flight: in an asynchronous run, after the round before.
    """
    if (system := plan.participation.system) is None:
        return None
    seconds = {k: system.seconds(k, one.flops, one.up.bytes, one.down.bytes) for k, one in trained.reports.items()}
    return plan.timing(t, seconds, len(trained.failed), flight)


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
    """Run one round. Each call to the backend queues work after earlier calls; `result` of the return value waits.

    Evaluation is queued after training, so that it can run while the server aggregates.

    evaluate: samples on which participants are tested; None: no test.
    skip: participants that failed when this round ran before. progress: called with the number of clients done.
    timing: computes the virtual times; late clients do not count.
    all_clients: also test all clients with the message that the server would send next.
    """
    when = backend.plan.evaluate_when if evaluate else None
    broadcast = backend.send(t, participants)
    groups = backend.plan.groups(participants)
    before: Coverage | None = "own" if when == "both" else evaluate if when == "after_receive" else None
    training = backend.train(t, groups, broadcast, before, skip, progress)
    evaluation = backend.evaluate(groups if when in ("after_update", "both") else (), evaluate or "own")
    trained = training.result()
    timed = timing(trained)
    late = timed.late if timed else ()
    held = timed.flight.arrivals if timed and timed.flight else ()
    discarded = backend.discard(late)
    aggregation = backend.aggregate(t, trained.uploads, {*late, *held})
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
    """Return the SHA-256 over all client and server state. Equal digests mean bit-identical runs."""
    clients, server = backend.digests()
    return combined_digest({f"client/{k:09d}": sha for k, sha in clients.items()} | {"server": server})
