"""The door between the round loop and whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights
from raysim.engine.checkpoint.format import PendingFiles
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.memory import MemoryUsage
from raysim.engine.records import ClientEvaluation, ClientFailure, ClientReport, ServerReport, Startup
from raysim.engine.spec import RunSpec


@dataclass(frozen=True)
class RoundReport:
    """What a backend says of a round."""

    client_reports: Mapping[ClientId, ClientReport]  # in client-id order
    evaluations: Mapping[ClientId, ClientEvaluation]  # the participants, where asked for
    server: ServerReport
    moved: int = 0  # clients whose state moved to another actor
    failed: Mapping[ClientId, ClientFailure] = field(default_factory=dict)  # whom the round went on without
    files: PendingFiles | None = None  # of the round's checkpoint, if it is to be one


class Backend(Protocol):
    """Runs clients and the server somewhere. All backends give bit-identical results.

    Any call but `close` may raise `LostError`; then `recover`, `restore` and repeating the rounds since make it good.
    """

    def start(self, spec: RunSpec, images: Callable[[], NDArray[np.uint8]]) -> None:
        """Bring everything up: hosts, server, hellos, the server's first state. `images` reads them, [M, H, W, C]."""

    def startup(self) -> Startup | None:
        """What `start` waited for, the first time; None: nothing, or something died meanwhile."""

    def recover(self) -> list[str]:
        """Replace what died and forget all state, as after `start`. Returns what a user should know, in sentences."""

    def restore(self, clients: Iterable[Mapping[ClientId, Weights]], server: bytes) -> None:
        """After `start` or `recover`: take in a checkpoint's states."""

    def round(
        self,
        t: int,
        cohort: Sequence[ClientId],
        evaluate: bool,
        progress: Callable[[int], None],
        without: Collection[ClientId] = (),
        storage: Storage | None = None,
    ) -> RoundReport:
        """One round. `progress` hears how many of the cohort are done, now and then.

        without: participants that are treated as failed unheard, because they failed when this round ran before.
        store: where to write the state after the round; whoever is done writes while others still work.
        """

    def evaluate(self, ids: Sequence[ClientId]) -> Mapping[ClientId, ClientEvaluation]:
        """Test clients' models as they are, in id order."""

    def save(self, t: int, storage: Storage) -> PendingFiles:
        """Begin to write what changed since the last time, as files of the checkpoint of round `t`, which is over."""

    def digests(self) -> tuple[dict[ClientId, str], str]:
        """SHA-256 of every client's state and of the server's."""

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        """SHA-256 of every tensor of these clients, and of the server's state."""

    def set_deadline(self, patience_s: float) -> None:
        """The run ends early: `PendingFiles` that wait for the busy raise `LostError` after so many seconds."""

    def memory(self) -> tuple[float, float]:
        """(resident memory of the run's processes, greatest GPU memory of any), in MiB."""

    def memory_usage(self) -> Mapping[str, tuple[MemoryUsage, MemoryUsage | None]]:
        """How full machines are that were looked at lately: name -> (its memory, the fullest GPU used)."""

    def close(self) -> None:
        """Let everything go; safe to call twice."""
