"""What keeps a run going: checkpoints now and then, and the way back to the last one when a part of the run dies.

A round is a pure function of the state before it, the seed and its number. So whatever dies, the run restores its last
checkpoint, repeats the rounds since then unheard, and goes on where it was, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from raysim.engine.checkpoint.format import PendingFiles
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.checkpoint.store import CheckpointStore

T = TypeVar("T")
Notify = Callable[[str], None]

AUTO_INTERVAL_S = 60.0
"""Seconds between checkpoints where the scenario leaves it open."""


@dataclass
class CheckpointManager:
    """Decides when a run is saved, and does it."""

    store: CheckpointStore
    every: int | None  # rounds; None: about every `AUTO_INTERVAL_S`
    rounds: int
    sync: Callable[[], None] = lambda: None  # make what was told of the rounds so far outlive this machine
    first: Callable[[int], None] = lambda t: None  # hears of the first checkpoint of this process
    round: int = 0  # of the last checkpoint that was begun
    at_s: float = field(default_factory=perf_counter)  # when that was

    def __post_init__(self) -> None:
        try:
            self.store.storage.make()
        except OSError as error:
            raise self.store.failure(0, error) from error

    def due(self, t: int) -> bool:
        """Whether round `t` is to be saved."""
        if t == self.rounds:
            return True
        return perf_counter() - self.at_s >= AUTO_INTERVAL_S if self.every is None else t % self.every == 0

    def begin(self, t: int) -> Storage:
        """Round `t` is going to be saved; returns where its files go."""
        self.round, self.at_s = t, perf_counter()
        return self.store.storage

    @property
    def saved_round(self) -> int | None:
        """The round of the last whole checkpoint."""
        return self.store.kept[-1].round if self.store.kept else None

    def checkpoint(self, t: int, files: PendingFiles, facts: Mapping[str, Any]) -> None:
        """Make files a checkpoint, once they are written and all that is told of the run is safe.

        Raises `CheckpointError` when that fails, `LostError` when one of those who write died.
        """
        try:
            written = files()
        except OSError as error:
            raise self.store.failure(t, error) from error
        self.sync()
        self.store.add(t, *written, facts)
        first, self.first = self.first, lambda t: None
        first(t)
