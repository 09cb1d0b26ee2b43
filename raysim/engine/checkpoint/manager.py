"""When a run saves its state, and the order in which that happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from raysim.engine.checkpoint.storage import Storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.records import Pending, SavedFiles

AUTO_INTERVAL_S = 60.0
"""Seconds between checkpoints where the scenario leaves it open."""


@dataclass
class CheckpointManager:
    """Decides when a run is saved, and completes checkpoints."""

    store: CheckpointStore
    every: int | None  # rounds; None: about every `AUTO_INTERVAL_S`
    rounds: int
    sync: Callable[[], None] = lambda: None  # makes the rows of the rounds so far outlive this machine
    first: Callable[[int], None] = lambda t: None  # called after the first checkpoint of this process
    begun_s: float = field(default_factory=perf_counter)  # when the last checkpoint was begun

    def __post_init__(self) -> None:
        try:
            self.store.storage.make()
        except OSError as error:
            raise self.store.failure(0, error) from error

    def due(self, t: int) -> bool:
        """Whether round `t` is to be saved."""
        if t == self.rounds:
            return True
        return perf_counter() - self.begun_s >= AUTO_INTERVAL_S if self.every is None else t % self.every == 0

    def begin(self) -> Storage:
        """Note that a checkpoint begins. Returns where its files go."""
        self.begun_s = perf_counter()
        return self.store.storage

    @property
    def saved_round(self) -> int | None:
        """The round of the last whole checkpoint."""
        return self.store.kept[-1].round if self.store.kept else None

    def complete(self, t: int, files: Pending[SavedFiles], facts: Mapping[str, Any]) -> None:
        """Make files a checkpoint, once they and the rows of all rounds so far are written.

        Raises `CheckpointError` when that fails, `LostError` when an actor that writes them died.
        """
        try:
            written = files.result()
        except OSError as error:
            raise self.store.failure(t, error) from error
        self.sync()
        self.store.add(t, *written, facts)
        first, self.first = self.first, lambda t: None
        first(t)
