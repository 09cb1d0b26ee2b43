"""The clients' part of a round: hooks run, networks train, and uploads are counted and packed.

A client's result depends on its state, its message, the run's seed and the round, never on its worker. Other clients
affect it only by rounding, and only those of its group, which train by the same call.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch

from raysim.common.errors import RunError
from raysim.core.algorithm import Client, ClientId, Task, overrides
from raysim.core.fit import FitJob, FitResult
from raysim.core.messages import WireSize, nonfinite, pack, unpack, wire_size
from raysim.core.meter import FlopMeter
from raysim.core.replay import RecordingError
from raysim.core.seeds import seeded
from raysim.core.torch_workarounds import lacks_memory
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import Coverage
from raysim.engine.policies.placement import Group
from raysim.engine.records import (
    Broadcast,
    ClientEvaluation,
    ClientFailure,
    ClientReport,
    NonFiniteUpload,
)
from raysim.engine.workers.client_samples import ClientSamples
from raysim.engine.workers.evaluation import ClientTester
from raysim.engine.workers.hooks import ChangedMessageError, Unchanged, errors_from, hook, set_threads
from raysim.engine.workers.state_files import Row, StatesError
from raysim.engine.workers.states import ClientStates
from raysim.engine.workers.time_limit import limit
from raysim.grouped.lockstep import in_lockstep
from raysim.grouped.together import ask_to_fit, fit_all


def _is_own_failure(error: RunError) -> bool:
    """Return whether an error may count as the failure of one client, without which the run continues.

    It may not if other clients are affected, which share the message and the disk. Nor may it if the error depends on
    the machine or the number of actors, because results would then depend on them, too.
    """
    affects_others = isinstance(error, ChangedMessageError | StatesError)
    return not affects_others and not isinstance(error.__cause__, RecordingError) and not lacks_memory(error.__cause__)


class Received(NamedTuple):
    """A message that a worker received, shared by all its receivers on this worker."""

    message: Any
    size: WireSize
    guard: Unchanged


NOTHING = Received(None, wire_size(None), Unchanged(None))


class ClientTrainer:
    """Runs the hooks and the training of the clients of one worker."""

    def __init__(
        self, plan: Plan, task: Task, states: ClientStates, samples: ClientSamples, evaluation: ClientTester
    ) -> None:
        """task: the run's task; its public data is on the device of the samples."""
        self.plan, self.task, self.states = plan, task, states
        self.samples, self.evaluation, self.device = samples, evaluation, samples.device
        # Rows before the round, if `plan.may_discard`; None: initial state.
        self.before: dict[ClientId, Row | None] = {}
        self.meter = FlopMeter()
        self.rounds_received = 0  # number of rounds with a message so far

    def register(self, ids: Iterable[ClientId]) -> dict[ClientId, Any]:
        """Return the packed registration message of every client with samples."""
        registrations: dict[ClientId, Any] = {}
        if not overrides(type(self.plan.algorithm), "client_register"):
            return registrations
        for k in (k for k in ids if self.plan.num_samples[k]):
            with self.states.changing(k), self._hook("client_register", 0, k):
                client = self.client(k, t=0)
                registration = self.plan.algorithm.client_register(client)
                self._check_net(client)
                wire_size(registration)  # raises if it is no message; its bytes count in no round
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
        """Run round `t` of these clients, one group after another, and yield (client, packed upload, report).

        evaluate_before: samples on which to test each model between receiving and training; None: no test.
        skip: clients that count as failed and do not train.
        """
        message_of = self._messages(broadcast)
        ids = [k for group in groups for k in group]
        self.before = {k: self.states.row(k) for k in ids} if self.plan.may_discard else {}
        for group in groups:
            downs = {k: message_of(k) for k in group}
            k = group[0]
            if k in skip:
                yield k, ClientFailure(), ClientFailure()
                continue
            try:
                yield from self._train_group(t, downs, evaluate_before)
            except RunError as error:
                failed = self._failure(error, k, t, downs[k].guard)
                yield k, failed, failed
        self.rounds_received += any(broadcast.of[k] is not None for k in ids)

    def evaluate_current(
        self, t: int, ids: Iterable[ClientId], broadcast: Broadcast
    ) -> dict[ClientId, ClientEvaluation | ClientFailure]:
        """Test clients after copies of their networks received their message of round `t`.

        No client's state changes. A failed client is reported if the run tolerates failures.
        """
        message_of = self._messages(broadcast)
        evaluations: dict[ClientId, ClientEvaluation | ClientFailure] = {}
        for k in ids:
            received = message_of(k)
            try:
                evaluations[k] = self._evaluate_received(k, t, received)
            except RunError as error:
                evaluations[k] = self._failure(error, k, t, received.guard)
        return evaluations

    def receiver(self, t: int, broadcast: Broadcast) -> Callable[[ClientId], None]:
        """Return a function that makes a client receive its message of round `t`, as `evaluate_current` does.

        It changes the network that `ClientStates.open` returns, or that `ClientStates.reading` yields.
        """
        message_of = self._messages(broadcast)
        return lambda k: self._receive(k, t, message_of(k))

    def discard(self, ids: Iterable[ClientId]) -> None:
        """Restore clients to their state before the last call of `train`."""
        for k in ids:
            self.states.put(k, self.before[k])
        self.states.unsaved &= self.states.held

    def client(self, k: ClientId, t: int) -> Client:
        """Return client k as its algorithm sees it in round `t`."""
        (client,) = self._clients([k], t, t)
        return client

    # -- inside ------------------------------------------------------------------------------------

    def _clients(self, ids: Sequence[ClientId], t: int, settings_of: int) -> list[Client]:
        """Return clients as their algorithm sees them in round `t`, by a single lookup of samples.

        settings_of: the round whose training settings they have.
        """
        plan, clients = self.plan, []
        for k, data in zip(ids, self.samples.each([plan.train.of(k) for k in ids]), strict=True):
            set_threads(plan, k)
            if plan.malicious is not None:
                data = replace(data, y=torch.from_numpy(plan.train_labels(k)).to(self.device))
            net, local, rng = self.states.open(k), plan.local_in(settings_of, k), seeded(plan.seed, "client", t, k)
            clients.append(Client(k, self.task, data, net, local, rng, t, plan.arch(k), meter=self.meter))
        return clients

    def _evaluate_received(self, k: ClientId, t: int, received: Received) -> ClientEvaluation:
        """Test client k after it received a message, and undo the change by the message."""
        fine_tuned = k in self.plan.held_out and self.plan.fine_tune > 0 and self.plan.num_samples[k] > 0
        if received.message is None and not fine_tuned:
            return self.evaluation.evaluate_one(k, "own")
        start = perf_counter()
        with self.states.reading(k), self._time_limit(k, t):
            if fine_tuned:
                self._fine_tune(k, t, received)
            else:
                self._receive(k, t, received)
            evaluation = self.evaluation.evaluate_one(k, "own")
        return replace(evaluation, seconds=perf_counter() - start)

    def _fine_tune(self, k: ClientId, t: int, received: Received) -> None:
        """Make a client that never takes part receive a message and train. Only its open network changes."""
        (client,) = self._clients([k], t, t - 1)
        client.local = replace(client.local, epochs=self.plan.fine_tune, steps=None)
        self._deliver(client, received)
        self._update(client, received, in_group=False)

    def _receive(self, k: ClientId, t: int, received: Received) -> None:
        """Make client k receive a message of round `t` without training afterwards. This changes its open network."""
        if received.message is None:
            return
        # The last round is followed by no settings of a next round, so the client keeps those of the last round.
        (client,) = self._clients([k], t, t - 1)
        self._deliver(client, received)

    def _messages(self, broadcast: Broadcast) -> Callable[[ClientId], Received]:
        """Return a function client -> message. Each message is unpacked once for all its receivers.

        A message to a single client is not kept: those to 10,000 clients may exceed the memory.
        """
        received: dict[int | None, Received] = {None: NOTHING}
        receivers = Counter(broadcast.of.values())

        def message_of(k: ClientId) -> Received:
            position = broadcast.of[k]
            if position is None or position in received:
                return received[position]
            message = self._received(broadcast.messages[position])
            if receivers[position] > 1:
                received[position] = message
            return message

        return message_of

    def _received(self, packed: Any) -> Received:
        down = unpack(packed, self.device)
        # Comparing values takes as long as copying the message, so it is done in rounds 1, 2, 4, 8, ... only. Round 1
        # alone is not enough, because a method may use the message only after a warm-up.
        guard = Unchanged(down, packed if (self.rounds_received + 1).bit_count() == 1 else None)
        return Received(down, wire_size(down), guard)

    def _failure(self, error: RunError, k: ClientId, t: int, guard: Unchanged) -> ClientFailure:
        """Return an error as the failure of client k. Raises the error if the run does not tolerate it.

        Each client of a run that tolerates failures trains alone, and keeps its earlier state if it fails. guard: of
        its message.
        """
        if not self.plan.tolerates_failures or not _is_own_failure(error):
            raise error
        self._check_unchanged(guard, "a hook", k, t)
        return ClientFailure(error)

    def _train_group(
        self, t: int, downs: Mapping[ClientId, Received], evaluate_before: Coverage | None
    ) -> list[tuple[ClientId, Any, ClientReport]]:
        """Make a group's clients receive, train and upload. Their states are stored only if no client fails.

        All clients take a step before any takes the next one: with small networks, a step that is repeated takes half
        the time of one that alternates with others, because its code stays in the processor's cache.
        """
        with ExitStack() as opened:
            for k in downs:
                opened.enter_context(self.states.changing(k))
            opened.enter_context(self._time_limit(next(iter(downs)), t))  # clients with one are not grouped
            start = perf_counter()
            clients = self._clients(list(downs), t, t)
            for client in clients:
                self._deliver(client, downs[client.id])
            tests = {k: self.evaluation.evaluate_one(k, evaluate_before) for k in downs} if evaluate_before else {}
            if len(clients) == 1:
                uploads = [self._update(clients[0], downs[clients[0].id], in_group=False)]
            else:
                updates = [partial(self._update, client, downs[client.id], in_group=True) for client in clients]
                # One device context for the group, because hooks exit in another order than they enter.
                with nullcontext() if self.device.type == "cpu" else self.device:
                    uploads = in_lockstep(updates, fit_all)
            if self.device.type != "cpu":
                torch.accelerator.synchronize(self.device)
            # The time is divided equally among the clients.
            train_s = (perf_counter() - start - sum(test.seconds for test in tests.values())) / len(clients)
            return [
                (client.id, packed, self._report(client, size, downs[client.id], train_s, tests.get(client.id)))
                for client, (packed, size) in zip(clients, uploads, strict=True)
            ]

    def _time_limit(self, k: ClientId, t: int) -> AbstractContextManager[None]:
        limit_s = self.plan.client_timeout_s
        if limit_s is None:
            return nullcontext()
        return limit(limit_s, f"client {k} took longer than failure.client_timeout_s ({limit_s:g} s) in round {t}")

    def _deliver(self, client: Client, received: Received) -> None:
        """Make a client receive its message, if there is one."""
        down, _, guard = received
        if down is None:
            return
        with self._hook("client_receive", client.t, client.id):
            self.plan.algorithm.client_receive(client, down)
        self._check_unchanged(guard, "client_receive", client.id, client.t)

    def _update(self, client: Client, received: Received, in_group: bool) -> tuple[Any, WireSize]:
        """Train a client; return its packed upload and its size. in_group: whether it runs in `in_lockstep`."""
        down, _, guard = received
        k, t = client.id, client.t

        def asking(job: FitJob) -> FitResult:
            self._check_unchanged(guard, "client_update", k, t)  # afterwards, hooks of other clients run
            return ask_to_fit(job)

        if in_group:
            client.trainer = asking
        with self._hook("client_update", t, k):
            up = self.plan.algorithm.client_update(client, down)
            size = wire_size(up)  # the size for `comm/up_bytes`; raises TypeError for anything but a message
            # The server gets a placeholder instead of NaN or infinity, which would spoil its state for the rest of the
            # run.
            packed = NonFiniteUpload() if nonfinite(up) else pack(up)
        self._check_unchanged(guard, "client_update", k, t)
        self._check_net(client)
        return packed, size

    def _report(
        self, client: Client, up: WireSize, down: Received, train_s: float, test: ClientEvaluation | None
    ) -> ClientReport:
        stats = client.stats
        train_loss = stats.train_loss if stats.samples else None
        diverged = train_loss is not None and not math.isfinite(train_loss)
        return ClientReport(
            train_loss, stats.samples, up, down.size, stats.flops, train_s, stats.values, test, stats.alone_because,
            received_nonfinite=diverged and nonfinite(down.message), single_sample=stats.single_sample,
        )  # fmt: skip

    def _check_net(self, client: Client) -> None:
        if client.net is not self.states.open(client.id):
            raise RunError(
                f"{type(self.plan.algorithm).__name__}: a hook of client {client.id} assigned a new network to "
                f"client.net in round {client.t}, which raysim would not keep; change the weights of client.net in "
                "place, for example with load_state_dict"
            )

    def _check_unchanged(self, guard: Unchanged, hook: str, k: ClientId, t: int) -> None:
        if guard.holds():
            return
        raise ChangedMessageError(
            f"{type(self.plan.algorithm).__name__}: {hook} of client {k} changed the server's message in place in "
            f"round {t}; clients share the message, so other clients would receive the changed values: change a copy, "
            "such as tensor.clone()"
        )

    def _hook(self, name: str, t: int, k: ClientId) -> errors_from:
        return hook(self.plan, name, t, k, self.device)
