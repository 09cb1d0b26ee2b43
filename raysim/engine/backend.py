"""The interface between the round loop and the backends that run clients and server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import Coverage
from raysim.engine.policies.placement import Group
from raysim.engine.records import (
    ClientEvaluation,
    CurrentTests,
    MemoryReport,
    Pending,
    SavedFiles,
    ServerReport,
    TrainingResult,
)


class Backend(Protocol):
    """Runs clients and the server, in this process or in others. All backends give bit-identical results.

    Every method except `close`, and every pending result, may raise `LostError`. To get the state back, call `recover`
    and `restore`, then repeat the rounds since the checkpoint.
    """

    plan: Plan  # set by `start`

    def start(self, plan: Plan, raw: Callable[[], NDArray[Any]]) -> float | None:
        """Start workers and server in their state before round 1. `raw` returns the stored samples, [M, ...].

        Returns the seconds until all actors had started; None if there are none, or if one died meanwhile.
        """

    def recover(self) -> None:
        """Replace dead actors, and reset all workers and the server to their state before round 1."""

    def restore(self, files: SavedFiles, storage: Storage) -> None:
        """Load the states that `save` wrote; call it after `start` or `recover`.

        The process that needs a file reads and checks it. Raises `DamageError` if a file is damaged.
        """

    def send(self, t: int, cohort: Sequence[ClientId]) -> Any:
        """Make the server create its messages of round `t`. Return the broadcast, or a reference to it."""

    def train(
        self,
        t: int,
        cohort: Sequence[Group],
        broadcast: Any,
        evaluate_before: Coverage | None,
        skip: Collection[ClientId],
        progress: Callable[[int], None],
    ) -> Pending[TrainingResult]:
        """Make the cohort receive the broadcast and train. The clients of a group are trained together.

        evaluate_before: samples on which to test each model between receiving and training; None: no test.
        skip: clients that count as failed without training, because they failed when this round ran before.
        progress: called repeatedly with the number of clients that are done.
        """

    def evaluate(
        self, groups: Sequence[Group], coverage: Coverage = "whole"
    ) -> Pending[Mapping[ClientId, ClientEvaluation]]:
        """Test clients' models after all queued work, each group by one call. The result is in client-id order.

        Groups of several clients must be groups of the last call of `train`: only these are on one worker.
        """

    def evaluate_current(self, t: int) -> Pending[CurrentTests]:
        """Test every client with its server message of round `t` after all queued work.

        Clients receive it on copies of their networks. No state changes, no byte counts, and the next round draws the
        same random numbers. Clients are tested one by one: a group's clients may be on different workers.
        """

    def discard(self, ids: Collection[ClientId]) -> Pending[None]:
        """Restore these participants to their state before the last call of `train`. Needs `plan.may_discard`."""

    def aggregate(self, t: int, uploads: Sequence[Any], late: Collection[ClientId]) -> Pending[ServerReport]:
        """Make the server update its state from the uploads of round `t`, except those of the clients in `late`.

        In an asynchronous run, the server keeps the uploads of these clients for a later round.
        """

    def save(self, t: int, storage: Storage) -> Pending[SavedFiles]:
        """Write all states that changed since the last `save`, as files of the checkpoint after round `t`.

        The pending result raises `OSError` if the files cannot be written.
        """

    def digests(self) -> tuple[dict[ClientId, str], str]:
        """Return the SHA-256 of every client's state and of the server's state."""

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        """Return the SHA-256 of every tensor of these clients and of the server's state."""

    def memory(self) -> MemoryReport:
        """Return the memory in use, as last reported by each process."""

    def close(self) -> None:
        """Release all resources; safe to call twice."""
