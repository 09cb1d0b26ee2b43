"""When a run saves its state, and what happens once a checkpoint's files are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from raysim.engine.checkpoint.storage import Storage
from raysim.engine.checkpoint.store import Checkpoint, CheckpointStore
from raysim.engine.records import Pending, SavedFiles

AUTO_INTERVAL_S = 60.0
"""Seconds between checkpoints if the scenario does not set the interval."""


@dataclass
class CheckpointManager:
    """Decides when a run saves its state, and completes checkpoints."""

    store: CheckpointStore
    every: int | None  # rounds between checkpoints; None: about every `AUTO_INTERVAL_S`
    rounds: int
    # `sync` writes the rows of all rounds so far to the disk, so that they survive a power cut.
    sync: Callable[[], None] = lambda: None
    first: Callable[[int], None] = lambda t: None  # called after the first checkpoint of this process
    keep_best_val: bool = False  # whether to also keep the state after the round with the greatest validation accuracy
    begun_s: float = field(default_factory=perf_counter)  # start of the last checkpoint

    def __post_init__(self) -> None:
        try:
            self.store.storage.make()
        except OSError as error:
            raise self.store.failure(0, error) from error

    def due(self, t: int) -> bool:
        """Return whether the state after round `t` should be saved."""
        if t == self.rounds:
            return True
        return perf_counter() - self.begun_s >= AUTO_INTERVAL_S if self.every is None else t % self.every == 0

    def begin(self) -> Storage:
        """Begin a checkpoint and return the storage for its files."""
        self.begun_s = perf_counter()
        return self.store.storage

    @property
    def saved_round(self) -> int | None:
        """The round of the last complete checkpoint; None if there is none."""
        return self.store.kept[-1].round if self.store.kept else None

    @property
    def best_val(self) -> Checkpoint | None:
        """The checkpoint of the best round by validation that the last checkpoint names; None if none is kept."""
        return self.store.of_best_val() if self.keep_best_val else None

    def complete(self, t: int, files: Pending[SavedFiles], facts: Mapping[str, Any]) -> None:
        """Complete a checkpoint after its files and the rows of all rounds so far are written.

        Raises `CheckpointError` if that fails, `LostError` if an actor that writes the files died.
        """
        try:
            written = files.result()
        except OSError as error:
            raise self.store.failure(t, error) from error
        self.sync()
        self.store.add(t, *written, facts, [facts.get("best_val_round")] if self.keep_best_val else ())
        first, self.first = self.first, lambda t: None
        first(t)
