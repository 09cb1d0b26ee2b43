"""The clients' part of a round: hooks run, networks train, and uploads are counted and packed.

A client's result depends on its state, its message, the run's seed and the round, never on its worker. Other clients
affect it only by rounding, and only those of its group, which train by the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch

from raysim.common.errors import RunError
from raysim.core.algorithm import Client, ClientId, Task
from raysim.core.fit import FitJob, FitResult, LocalTraining, Trainer, fit_one
from raysim.core.messages import WireSize, nonfinite, pack, unpack, wire_size
from raysim.core.meter import FlopMeter
from raysim.core.seeds import seeded
from raysim.engine.policies.placement import Group
from raysim.engine.records import (
    Broadcast,
    ClientEvaluation,
    ClientFailure,
    ClientReport,
    Coverage,
    NonFiniteUpload,
)
from raysim.engine.spec import RunSpec
from raysim.engine.workers.client_samples import ClientSamples
from raysim.engine.workers.evaluation import Evaluation
from raysim.engine.workers.hooks import hook, set_threads
from raysim.engine.workers.rows import Row
from raysim.engine.workers.states import ClientStates
from raysim.engine.workers.time_limit import limit
from raysim.engine.workers.unchanged import ChangedMessageError, Unchanged
from raysim.grouped.lockstep import in_lockstep
from raysim.grouped.together import ask_to_fit, fit_all


class Received(NamedTuple):
    """A message that a worker received, which all its receivers on this worker share."""

    message: Any
    size: WireSize
    guard: Unchanged


NOTHING = Received(None, wire_size(None), Unchanged(None))


class Training:
    """Runs the hooks and the training of the clients of one worker."""

    def __init__(
        self, spec: RunSpec, task: Task, states: ClientStates, samples: ClientSamples, evaluation: Evaluation
    ) -> None:
        """task: the run's task, with public data on the device of the samples."""
        self.spec, self.task, self.states = spec, task, states
        self.samples, self.evaluation, self.device = samples, evaluation, samples.device
        self.before: dict[ClientId, Row | None] = {}  # before the round, if `spec.may_discard`; None: initial state
        self.local: tuple[int, dict[LocalTraining, LocalTraining]] = -1, {}  # (round, settings -> those in the round)
        self.meter = FlopMeter()
        self.rounds_received = 0  # rounds with a message, so far

    def register(self, ids: Iterable[ClientId]) -> dict[ClientId, Any]:
        """Return the packed registration of every client that has samples."""
        registrations = {}
        for k in (k for k in ids if self.spec.num_samples[k]):
            with self.states.changing(k), self._hook("client_register", 0, k):
                registration = self.spec.algorithm.client_register(self.client(k, t=0))
                wire_size(registration)  # checks that it is a message; its bytes count in no round
                registrations[k] = pack(registration)
        return registrations

    def train(
        self,
        t: int,
        groups: Sequence[Group],
        broadcast: Broadcast,
        evaluate_before: Coverage | None,
        skip: Collection[ClientId] = (),
    ) -> Iterator[tuple[ClientId, Any, ClientReport | ClientFailure]]:
        """See `ClientWorker.train`."""
        received: dict[int | None, Received] = {None: NOTHING}
        ids = [k for group in groups for k in group]
        self.states.read_ahead(ids)
        self.before = {k: self.states.row(k) for k in ids} if self.spec.may_discard else {}
        for group in groups:
            for position in {broadcast.of[k] for k in group} - received.keys():
                assert position is not None
                received[position] = self._received(broadcast.messages[position])
            downs = {k: received[broadcast.of[k]] for k in group}
            if len(group) > 1:
                yield from self._train_group(t, downs, evaluate_before)
                continue
            (k,) = group
            if k in skip:
                yield k, ClientFailure("it failed before"), ClientFailure("it failed before")
            elif self.spec.tolerates_failures:
                yield self._train_tolerating(k, t, downs[k], evaluate_before)
            else:
                yield self._train_one(k, t, downs[k], evaluate_before)
        self.rounds_received += len(received) > 1

    def evaluate_current(
        self, t: int, ids: Iterable[ClientId], broadcast: Broadcast
    ) -> dict[ClientId, ClientEvaluation | ClientFailure]:
        """See `ClientWorker.evaluate_current`."""
        message_of = self._messages(broadcast)
        ids = list(ids)
        self.states.read_ahead(ids)
        evaluations: dict[ClientId, ClientEvaluation | ClientFailure] = {}
        for k in ids:
            received = message_of(k)
            try:
                evaluations[k] = self._evaluate_received(k, t, received)
            except ChangedMessageError:
                raise
            except RunError as error:
                if not self.spec.tolerates_failures:
                    raise
                self._check_unchanged(received.guard, "a hook", k, t)
                evaluations[k] = ClientFailure(str(error), getattr(error, "trace", ""))
        return evaluations

    def receiver(self, t: int, broadcast: Broadcast) -> Callable[[ClientId], None]:
        """See `ClientWorker.receiver`."""
        message_of = self._messages(broadcast)
        return lambda k: self._receive(k, t, message_of(k))

    def discard(self, ids: Iterable[ClientId]) -> None:
        """Restore clients to their state before the last call of `train`."""
        for k in ids:
            self.states.put(k, self.before[k])
        self.states.unsaved &= self.states.held

    def client(self, k: ClientId, t: int, trainer: Trainer = fit_one, local: LocalTraining | None = None) -> Client:
        """Return client k as its algorithm sees it in round `t`. local: training settings; default: those of `t`."""
        spec = self.spec
        set_threads(spec, k)
        return Client(
            id=k,
            task=self.task,
            data=self.samples.at(spec.train.of(k)),
            net=self.states.open(k),
            local=self._local_in(t, k) if local is None else local,
            rng=seeded(spec.seed, "client", t, k),
            t=t,
            arch=spec.arch(k),
            meter=self.meter,
            trainer=trainer,
        )

    # -- inside ------------------------------------------------------------------------------------

    def _evaluate_received(self, k: ClientId, t: int, received: Received) -> ClientEvaluation:
        """Test client k after it received a message, and drop what the message changed."""
        if received.message is None:
            return self.evaluation.evaluate_one(k, "own")
        start = perf_counter()
        with self.states.reading(k), self._time_limit(k, t):
            self._receive(k, t, received)
            evaluation = self.evaluation.evaluate_one(k, "own")
        return replace(evaluation, seconds=perf_counter() - start)

    def _receive(self, k: ClientId, t: int, received: Received) -> None:
        """Let client k receive a message of round `t` without a training that follows. It changes its open network."""
        down, _, guard = received
        if down is None:
            return
        # After the last round there are no training settings of the next one, so the client has the last ones.
        client = self.client(k, t, local=self._local_in(t - 1, k))
        with self._hook("client_receive", t, k, down):
            self.spec.algorithm.client_receive(client, down)
        self._check_unchanged(guard, "client_receive", k, t)

    def _messages(self, broadcast: Broadcast) -> Callable[[ClientId], Received]:
        """Return a function from a client to its message, which is unpacked once for all clients that receive it."""
        received: dict[int | None, Received] = {None: NOTHING}

        def message_of(k: ClientId) -> Received:
            position = broadcast.of[k]
            if position is not None and position not in received:
                received[position] = self._received(broadcast.messages[position])
            return received[position]

        return message_of

    def _received(self, packed: Any) -> Received:
        down = unpack(packed, self.device)
        # Comparing values takes as long as a copy of the message, so only rounds 1, 2, 4, 8, ... do it. Round 1 is not
        # enough, since a method may begin to use the message after a warm-up.
        guard = Unchanged(down, packed if (self.rounds_received + 1).bit_count() == 1 else None)
        return Received(down, wire_size(down), guard)

    def _train_tolerating(
        self, k: ClientId, t: int, down: Received, evaluate_before: Coverage | None
    ) -> tuple[ClientId, Any, ClientReport | ClientFailure]:
        """Train as `_train_one` does, but report a failing client as failed and keep its earlier state."""
        try:
            return self._train_one(k, t, down, evaluate_before)
        except ChangedMessageError:  # other clients share the changed message
            raise
        except RunError as error:
            self._check_unchanged(down.guard, "a hook", k, t)
            failed = ClientFailure(str(error), getattr(error, "trace", ""))
            return k, failed, failed

    def _train_group(
        self, t: int, downs: Mapping[ClientId, Received], evaluate_before: Coverage | None
    ) -> list[tuple[ClientId, Any, ClientReport]]:
        """Train a group: its hooks wait for each other in `Client.fit`. Each client gets an equal share of the time."""
        start = perf_counter()
        works = [partial(self._train_one, k, t, down, evaluate_before, ask_to_fit) for k, down in downs.items()]
        # Device contexts are per thread, but these hooks exit in another order than they entered.
        with nullcontext() if self.device.type == "cpu" else self.device:
            results = in_lockstep(works, fit_all)
        share_s = (perf_counter() - start) / len(results)
        return [(k, up, replace(report, train_s=share_s)) for k, up, report in results]

    def _train_one(
        self,
        k: ClientId,
        t: int,
        down: Received,
        evaluate_before: Coverage | None,
        trainer: Trainer = fit_one,
    ) -> tuple[ClientId, Any, ClientReport]:
        with self.states.changing(k), self._time_limit(k, t):
            return self._client_round(k, t, down, evaluate_before, trainer)

    def _time_limit(self, k: ClientId, t: int) -> AbstractContextManager[None]:
        limit_s = self.spec.client_timeout_s
        if limit_s is None:
            return nullcontext()
        return limit(limit_s, f"client {k} took longer than failure.client_timeout_s ({limit_s:g} s) in round {t}")

    def _client_round(
        self, k: ClientId, t: int, received: Received, evaluate_before: Coverage | None, trainer: Trainer
    ) -> tuple[ClientId, Any, ClientReport]:
        """Run a client's part of a round: receive, train, count the upload and pack it."""
        algorithm, (down, down_size, guard) = self.spec.algorithm, received

        def checked(job: FitJob) -> FitResult:
            self._check_unchanged(guard, "client_update", k, t)  # before the next client's hooks run
            return trainer(job)

        client = self.client(k, t, trainer if trainer is fit_one else checked)
        evaluation = None
        start = perf_counter()
        if down is not None:
            with self._hook("client_receive", t, k, down):
                algorithm.client_receive(client, down)
            self._check_unchanged(guard, "client_receive", k, t)
        if evaluate_before:
            evaluation = self.evaluation.evaluate_one(k, evaluate_before)
        with self._hook("client_update", t, k, down):
            up = algorithm.client_update(client, down)
            up_size = wire_size(up)  # counts the upload (`comm/up_bytes`); raises TypeError if it is no message
            # A NaN or infinity would ruin the server's state permanently, so the server gets a marker instead.
            packed = NonFiniteUpload() if nonfinite(up) else pack(up)
        self._check_unchanged(guard, "client_update", k, t)
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        train_s = perf_counter() - start - (evaluation.seconds if evaluation else 0.0)
        stats = client.stats
        train_loss = stats.train_loss if stats.samples else None
        report = ClientReport(
            train_loss, stats.samples, up_size, down_size, stats.flops, train_s, stats.values, evaluation, stats.apart
        )
        return k, packed, report

    def _check_unchanged(self, guard: Unchanged, hook: str, k: ClientId, t: int) -> None:
        guard.check(
            f"{type(self.spec.algorithm).__name__}: {hook} of client {k} changed the server's message in place in "
            f"round {t}; clients share the message, so other clients would receive the changed values: change a copy, "
            "such as tensor.clone()"
        )

    def _local_in(self, t: int, k: ClientId) -> LocalTraining:
        """Return client k's training settings in round `t`: its own epochs, and the learning rate of the round."""
        if self.local[0] != t:
            self.local = t, {}
        known, given = self.local[1], self.spec.local_of(k)
        if (epochs := self.spec.epochs_in(t, k)) != given.epochs:
            given = replace(given, epochs=epochs)
        if given not in known:
            known[given] = self.spec.local_in(t, given)
        return known[given]

    def _hook(self, name: str, t: int, k: ClientId, msg: Any = None) -> Any:
        return hook(self.spec.seed, name, t, k, self.spec.algorithm, self.device, msg, self.spec.arch(k))
