"""Recovery: when a part of the run dies, restore the last checkpoint and repeat the rounds after it.

A round is a pure function of the state before it, the seed and its number. So the run has bit-identical results,
whichever part dies.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from raysim.common.errors import RunError
from raysim.core.algorithm import ClientId
from raysim.engine.backend import Backend
from raysim.engine.checkpoint.store import Checkpoint, CheckpointManager, DamagedCheckpointError
from raysim.engine.records import LostError, RoundReport

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class RecoveringBackend:
    """Calls a backend. After a `LostError`, it restores the backend's state and repeats the call."""

    backend: Backend
    replay: Callable[[Checkpoint | None, int, Mapping[int, Collection[ClientId]]], object]
    """(checkpoint, last round, round -> failed clients): runs these rounds again, without these clients."""
    checkpoints: CheckpointManager | None
    max_attempts: int
    wait_for_checkpoint: Callable[[], None]  # waits until a checkpoint in progress is written
    at: int = 0  # the last round in the backend's state
    restarts: int = 0
    failed: dict[int, Collection[ClientId]] = field(default_factory=dict)  # round -> clients that failed in it
    attempts: int = 0  # number of recoveries after the last new round

    def __call__(self, call: Callable[[], T]) -> T:
        """Make a call that does not change the state. Raises `RunError` after `max_attempts` deaths."""
        lost: LostError | None = None
        while True:
            try:
                if lost is not None:
                    self._recover(lost)
                return call()
            except LostError as error:
                # The frames of the exception must not keep uploads in memory while rounds are repeated.
                traceback.clear_frames(error.__traceback__)
                lost = error

    def completed(self, t: int, report: RoundReport) -> None:
        """Record that the backend's state includes round `t`, the one after `at`."""
        self.at, self.attempts = t, 0
        if report.failed:
            self.failed[t] = list(report.failed)

    def _recover(self, lost: LostError) -> None:
        """Replace dead actors, restore the last checkpoint, and repeat the rounds after it up to `at`.

        Raises `LostError` when an actor dies meanwhile.
        """
        # A damaged checkpoint does not count as an attempt. The store drops it, so the loop ends when no checkpoint is
        # left.
        if not isinstance(lost, DamagedCheckpointError):
            self.attempts += 1
            self.restarts += 1
        if self.attempts > self.max_attempts:
            raise RunError(
                f"{lost}; the run ends, because it recovered {self.max_attempts} "
                f"time{'s' if self.max_attempts > 1 else ''} in a row without completing another round "
                "(failure.max_attempts)"
            )
        with contextlib.suppress(LostError):  # the dead actor may have held a part of a checkpoint in progress
            self.wait_for_checkpoint()
        checkpoint = self._latest()
        base = checkpoint.round if checkpoint else 0
        repeat = self.at - base
        logger.warning(
            f"{lost}; going back to {f'the checkpoint of round {base}' if checkpoint else 'the start'}"
            + (f" and repeating {repeat} round{'s' if repeat > 1 else ''}" if repeat > 0 else "")
        )
        self.backend.recover()
        if checkpoint and self.checkpoints:
            self.checkpoints.store.restore(checkpoint, self.backend.restore)
        self.replay(checkpoint, self.at, self.failed)

    def _latest(self) -> Checkpoint | None:
        if self.checkpoints is None:
            return None
        store = self.checkpoints.store
        checkpoint = store.latest()
        for text in store.take_damage():
            logger.warning(text)
        return checkpoint
