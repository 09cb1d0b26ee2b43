"""What keeps a run going: checkpoints now and then, and the way back to the last one when a part of the run dies.

A round is a pure function of the state before it, the seed and its number. So whatever dies, the run restores its last
checkpoint, repeats the rounds since then unheard, and goes on where it was, with the same bits.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from raysim.common.errors import RunError
from raysim.core.algorithm import ClientId
from raysim.engine.backend import Backend, RoundReport
from raysim.engine.checkpoint.manager import CheckpointManager
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.checkpoint.store import Checkpoint
from raysim.engine.records import LostError

T = TypeVar("T")
Notify = Callable[[str], None]

AUTO_INTERVAL_S = 60.0
"""Seconds between checkpoints where the scenario leaves it open."""


@dataclass
class RecoveringBackend:
    """Calls a backend; what a death cost is restored and repeated before the call is made again."""

    backend: Backend
    cohort: Callable[[int], Sequence[ClientId]]  # round -> its participants
    checkpoints: CheckpointManager | None
    notify: Notify
    max_attempts: int
    wait_for_checkpoint: Callable[[], None]  # wait until a checkpoint that is being written is done
    at: int  # the round after which the backend's state is
    restarts: int = 0
    failed: dict[int, Collection[ClientId]] = field(default_factory=dict)  # round -> whom it went on without
    attempts: int = 0  # since `at` last moved

    def __call__(self, call: Callable[[], T]) -> T:
        """Make a call to the backend that leaves its state as it is. Raises `RunError` after `max_attempts` deaths."""
        lost: LostError | None = None
        while True:
            try:
                if lost is not None:
                    self._go_back(lost)
                return call()
            except LostError as death:
                # Else what the call had in hand, such as uploads, would be kept while the rounds are repeated.
                traceback.clear_frames(death.__traceback__)
                lost = death

    def round(self, t: int, evaluate: bool, progress: Callable[[int], None], storage: Storage | None) -> RoundReport:
        """Run round `t`, which follows `at`. store: where its checkpoint goes, if it is to be one."""
        try:
            report = self(lambda: self.backend.round(t, self.cohort(t), evaluate, progress, storage=storage))
        except OSError as error:
            raise self.checkpoints.store.failure(t, error) if self.checkpoints and storage else error from error
        self.at, self.attempts = t, 0
        if report.failed:
            self.failed[t] = list(report.failed)
        return report

    def _go_back(self, lost: LostError) -> None:
        """Let the backend be as it was after round `at`. Raises `LostError` when something dies meanwhile."""
        self.attempts += 1
        if self.attempts > self.max_attempts:
            raise RunError(
                f"{lost}; the run went back {self.max_attempts} times without getting further (failure.max_attempts)"
            )
        self.restarts += 1
        with contextlib.suppress(LostError):  # a checkpoint went with what died
            self.wait_for_checkpoint()
        checkpoint = self._latest()
        base = checkpoint.round if checkpoint else 0
        repeat = self.at - base
        self.notify(
            f"{lost}; going back to {f'the checkpoint of round {base}' if checkpoint else 'the start'}"
            + (f" and repeating {repeat} round{'s' if repeat > 1 else ''}" if repeat else "")
        )
        for text in self.backend.recover():
            self.notify(text)
        if checkpoint and self.checkpoints:
            store = self.checkpoints.store
            self.backend.restore(store.clients(checkpoint), store.server(checkpoint))
        for t in range(base + 1, self.at + 1):
            self.backend.round(t, self.cohort(t), False, lambda done: None, self.failed.get(t, ()))

    def _latest(self) -> Checkpoint | None:
        if self.checkpoints is None:
            return None
        store = self.checkpoints.store
        store.has_orphans = True  # files of a checkpoint that was cut off
        told = len(store.damage)
        checkpoint = store.latest()
        for text in store.damage[told:]:
            self.notify(text)
        return checkpoint
