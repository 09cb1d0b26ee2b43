"""A trial: a few rounds of an algorithm in the toy task, on the in-process backend, with seams for the clauses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from raysim.common.errors import RaysimError
from raysim.contract.toy import FAMILIES, FOUR, Labels, toy_samples, toy_spec
from raysim.core.algorithm import AnyAlgorithm, Client, ClientId, Server, Task
from raysim.core.data import Samples
from raysim.core.messages import pack, unpack
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import Coverage
from raysim.engine.policies.placement import Group
from raysim.engine.policies.system import Timing
from raysim.engine.records import (
    Broadcast,
    CheckpointFile,
    NonFiniteUpload,
    Pending,
    RoundReport,
    TrainingResult,
)
from raysim.engine.run import run_round


class ContractError(RaysimError):
    """An algorithm breaks a clause of the contract; the message names the clause, the problem and the remedy.

    Attributes:
        clause: the name of the clause, as in docs/contract.md.

    >>> import raysim
    >>> from raysim.algorithms.standalone import Standalone
    >>> class Forgetful(Standalone):
    ...     pass
    >>> try:
    ...     raysim.check_algorithm(Forgetful())
    ... except raysim.ContractError as error:
    ...     print(error.clause)
    defined
    """

    def __init__(self, algorithm: AnyAlgorithm, clause: str, text: str) -> None:
        super().__init__(f"{type(algorithm).__name__} breaks the clause {clause!r}: {text}")
        self.clause = clause


class AllKnown(dict[str, int]):
    """A mapping that claims to have the operations of any set of uploads, so that the server never counts them."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> int:
        return 0


class SeamBackend(InProcessBackend):
    """An in-process backend that records messages, and can change them and the order in which clients run.

    Messages are pickled on their way, as between the processes of a cluster.

    Attributes:
        sent: (hook, client, message) of every message of the rounds.
        reverse: whether clients run in the opposite order.
        tamper: changes the messages of a hook: (hook, message) -> message.
    """

    def __init__(self, reverse: bool, tamper: Callable[[str, Any], Any] | None) -> None:
        super().__init__()
        self.reverse, self.tamper = reverse, tamper
        self.sent: list[tuple[str, ClientId, Any]] = []

    def count_no_operations(self) -> None:
        """Skip the count of operations, which would take most of a trial's time."""
        training: Any = self.worker.training
        training.meter = None
        self.server._flops = AllKnown()

    def send(self, t: int, cohort: Sequence[ClientId]) -> Broadcast:
        broadcast = super().send(t, cohort)
        messages = tuple(self._carried("server_send", msg) for msg in broadcast.messages)
        copies = [unpack(msg) for msg in messages]
        for k, place in broadcast.of.items():
            self.sent.append(("server_send", k, None if place is None else copies[place]))
        return replace(broadcast, messages=messages)

    def train(
        self,
        t: int,
        cohort: Sequence[Group],
        broadcast: Broadcast,
        evaluate_before: Coverage | None,
        skip: Collection[ClientId],
        progress: Callable[[int], None],
    ) -> Pending[TrainingResult]:
        order = cohort[::-1] if self.reverse else cohort
        trained = super().train(t, order, broadcast, evaluate_before, skip, progress).result()
        uploads = {k: self._carried("client_update", up) for part in trained.uploads for k, up in part.items()}
        for k in sorted(uploads):
            self.sent.append(("client_update", k, unpack(uploads[k])))
        done = replace(trained, uploads=[uploads])
        return Pending(lambda: done)

    def _carried(self, hook: str, packed: Any) -> Any:
        arrived = pickle.loads(pickle.dumps(packed))
        if self.tamper is None or arrived is None or isinstance(arrived, NonFiniteUpload):
            return arrived
        return pack(self.tamper(hook, unpack(arrived)))


@dataclass(frozen=True)
class InMemory(Storage):
    """A checkpoint storage in the memory of this process."""

    where: str = "memory"
    files: dict[str, bytes] = field(default_factory=dict)

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def read(self, name: str) -> bytes:
        return self.files[name]


class Trial:
    """A run of an algorithm in the toy task. `round` runs a round, `resumed` continues from a checkpoint."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        labels: Labels = FOUR,
        models: Sequence[str] | None = None,
        reverse: bool = False,
        tamper: Callable[[str, Any], Any] | None = None,
        counts: bool = False,
        **changes: Any,
    ) -> None:
        """labels: class ids per client. models: architectures; default: the first set that the algorithm accepts.

        reverse, tamper: see `SeamBackend`. counts: whether operations are counted. changes: fields of `Plan`.
        """
        self.algorithm, self.labels, self.t = algorithm, labels, 0
        self.plan = toy_spec(algorithm, labels, models, **changes) if models else _accepted(algorithm, labels, changes)
        raw_M = np.concatenate([samples.raw_N.numpy() for samples in self.samples.values()])
        self.backend = SeamBackend(reverse, tamper)
        self.storage = InMemory()
        self.saved: list[CheckpointFile] = []
        self.backend.start(self.plan, lambda: raw_M)
        if not counts:
            self.backend.count_no_operations()

    @cached_property
    def samples(self) -> dict[ClientId, Samples]:
        """The samples of each client."""
        return {k: toy_samples(one, k) for k, one in enumerate(self.labels)}

    @property
    def task(self) -> Task:
        """The task that the hooks see."""
        return self.plan.task

    @property
    def server(self) -> Server[Any]:
        """The server, as its hooks see it."""
        return self.backend.server.server

    @property
    def sent(self) -> list[tuple[str, ClientId, Any]]:
        """Copies of all messages of the rounds so far: (hook, client, message or None)."""
        return self.backend.sent

    @property
    def nets(self) -> dict[ClientId, nn.Module]:
        """The network of each client, for reading and changing until the next round."""
        return {k: self.backend.worker.states.open(k) for k in self.samples}

    def client(self, k: ClientId, t: int) -> Client:
        """Return client `k` as a hook of round `t` gets it."""
        return self.backend.worker.training.client(k, t)

    def round(self, t: int, cohort: Sequence[ClientId] | None = None, timing: Timing | None = None) -> Trial:
        """Run round `t`. cohort: the participants, by default all. timing: the uploads that count, by default all."""
        self._close_nets()
        ids = sorted(self.samples if cohort is None else cohort)
        self.report: RoundReport = run_round(self.backend, t, ids, timing=lambda trained: timing)
        self.t = t
        return self

    def run(self, rounds: int) -> Trial:
        """Run rounds 1 to `rounds` with all clients."""
        for t in range(1, rounds + 1):
            self.round(t)
        return self

    def resumed(self, **changes: Any) -> Trial:
        """Return a new trial that restores a checkpoint of this one, with a copied algorithm and new networks."""
        self._close_nets()
        clients, server = self.backend.save(self.t, self.storage).result()
        self.saved += clients  # `clients` are the files of clients that changed since the last checkpoint
        other = Trial(pickle.loads(pickle.dumps(self.algorithm)), self.labels, self.plan.models, **changes)
        other.backend.restore((self.saved, server), self.storage)
        other.backend.count_no_operations()
        other.t = self.t
        return other

    def states(self) -> dict[str, str]:
        """Return a digest of the state of every client and of the server."""
        clients, server = self.backend.digests()
        return {f"the state of client {k}": sha for k, sha in clients.items()} | {"server.state": server}

    def score(self) -> tuple[float, float]:
        """Return (mean loss, accuracy) over all clients' samples."""
        tests = self.backend.evaluate([(k,) for k in self.samples]).result().values()
        total = sum(test.total for test in tests)
        return sum(test.loss_sum for test in tests) / total, sum(test.correct for test in tests) / total

    def _close_nets(self) -> None:
        states = self.backend.worker.states
        for k in list(states.opened):
            states.close(k)


def _accepted(algorithm: AnyAlgorithm, labels: Labels, changes: dict[str, Any]) -> Plan:
    """Return a specification with the first set of architectures that the algorithm accepts.

    With `one_architecture` the only candidate is `norm`, which is the hardest to exchange.
    """
    refused: ValueError | None = None
    for family in (("norm",),) if algorithm.one_architecture else FAMILIES:
        plan = toy_spec(algorithm, labels, family, **changes)
        try:
            algorithm.check(plan.task)
        except ValueError as error:
            refused = refused or error
        else:
            return plan
    text = f"`check` refuses all small tasks that the test tries: {refused}; accept small tasks in `check`"
    raise ContractError(algorithm, "runs", text)


def disguised(algorithm: AnyAlgorithm, cls: type[AnyAlgorithm]) -> AnyAlgorithm:
    """Return a copy of an algorithm whose class is a new subclass that observes calls."""
    cls.__name__ = type(algorithm).__name__
    observed = copy.copy(algorithm)
    object.__setattr__(observed, "__class__", cls)  # a frozen dataclass allows no other way
    return observed
