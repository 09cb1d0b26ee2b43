"""The interface between the round loop and what runs clients and server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.policies.placement import Group
from raysim.engine.records import (
    ClientEvaluation,
    Coverage,
    MemoryReport,
    Pending,
    SavedFiles,
    ServerReport,
    Startup,
    TrainingResult,
)
from raysim.engine.spec import RunSpec


class Backend(Protocol):
    """Runs clients and the server somewhere. All backends give bit-identical results.

    Any method but `close` may raise `LostError`, and so may pending results; `recover`, `restore` and repeating the
    rounds since the checkpoint then bring the state back.
    """

    spec: RunSpec  # since `start`

    def start(self, spec: RunSpec, raw: Callable[[], NDArray[Any]]) -> Startup | None:
        """Start workers and server, with the state before round 1. `raw` reads the samples as stored, [M, ...].

        Returns how long actors took to start; None where there are none, or one of them died meanwhile.
        """

    def recover(self) -> None:
        """Replace what died and forget all state, as after `start`."""

    def restore(self, files: SavedFiles, storage: Storage) -> None:
        """After `start` or `recover`: load the states that `save` wrote. Each file is read and checked where it goes.

        Raises `DamageError` when a file is damaged.
        """

    def send(self, t: int, cohort: Sequence[ClientId]) -> Any:
        """Ask the server for its messages of round `t`. Returns the broadcast, or a reference to it."""

    def train(
        self,
        t: int,
        cohort: Sequence[Group],
        broadcast: Any,
        evaluate_before: Coverage | None,
        skip: Collection[ClientId],
        progress: Callable[[int], None],
    ) -> Pending[TrainingResult]:
        """Let the cohort, in groups that are trained together, receive the broadcast and train.

        evaluate_before: test each model between receiving and training, and on what; None: do not.
        skip: clients that count as failed without training, because they failed when this round ran before.
        progress: called with the number of clients that are done, now and then.
        """

    def evaluate(
        self, groups: Sequence[Group], coverage: Coverage = "whole"
    ) -> Pending[Mapping[ClientId, ClientEvaluation]]:
        """Test clients' models as they are after the work begun so far, those of a group by one call; in id order.

        A group of several clients is one that `train` began with last: all are then in one place.
        """

    def discard(self, ids: Collection[ClientId]) -> Pending[None]:
        """Let participants be as they were before the round in which `train` began last. Needs `spec.may_discard`."""

    def aggregate(self, t: int, uploads: Sequence[Any], late: Collection[ClientId]) -> Pending[ServerReport]:
        """Let the server update its state from the uploads of round `t`, without those of the clients in `late`."""

    def save(self, t: int, storage: Storage) -> Pending[SavedFiles]:
        """Write what changed since the last `save`, as files of the checkpoint of round `t`.

        The pending result raises `OSError` when the files cannot be written.
        """

    def digests(self) -> tuple[dict[ClientId, str], str]:
        """SHA-256 of every client's state and of the server's."""

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        """SHA-256 of every tensor of these clients, and of the server's state."""

    def memory(self) -> MemoryReport:
        """Memory in use, as last reported by each process."""

    def close(self) -> None:
        """Release everything; safe to call twice."""
