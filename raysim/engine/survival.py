"""What keeps a run going: commits now and then, and the way back to the last one when a part of the run dies.

A round is a pure function of the state before it, the seed and its number. So whatever dies, the run restores its last
commit, repeats the rounds since then unheard, and goes on where it was, with the same bits.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from raysim.core.algorithm import ClientId
from raysim.core.errors import RunError
from raysim.engine.backend import Backend, Files, LostError, RoundReport
from raysim.engine.commits import Commit, Commits
from raysim.engine.store import Store

T = TypeVar("T")
Note = Callable[[str], None]

AUTO_S = 60.0
"""Seconds between commits where the scenario leaves it open."""


@dataclass
class Keeper:
    """Decides when a run is committed, and does it."""

    commits: Commits
    every: int | None  # rounds; None: about every `AUTO_S`
    rounds: int
    sync: Callable[[], None] = lambda: None  # make what was told of the rounds so far outlive this machine
    first: Callable[[int], None] = lambda t: None  # hears of the first commit of this process
    round: int = 0  # of the last commit that was begun
    at_s: float = field(default_factory=perf_counter)  # when that was

    def __post_init__(self) -> None:
        try:
            self.commits.store.make()
        except OSError as error:
            raise self.commits.failure(0, error) from error

    def due(self, t: int) -> bool:
        """Whether round `t` is to be committed."""
        if t == self.rounds:
            return True
        return perf_counter() - self.at_s >= AUTO_S if self.every is None else t % self.every == 0

    def begin(self, t: int) -> Store:
        """Round `t` is going to be committed; returns where its files go."""
        self.round, self.at_s = t, perf_counter()
        return self.commits.store

    @property
    def committed(self) -> int | None:
        """The round of the last whole commit."""
        return self.commits.kept[-1].round if self.commits.kept else None

    def commit(self, t: int, files: Files, facts: Mapping[str, Any]) -> None:
        """Make files a commit, once they are written and all that is told of the run is safe.

        Raises `CommitError` when that fails, `LostError` when one of those who write died.
        """
        try:
            written = files()
        except OSError as error:
            raise self.commits.failure(t, error) from error
        self.sync()
        self.commits.add(t, *written, facts)
        first, self.first = self.first, lambda t: None
        first(t)


@dataclass
class Survivor:
    """Calls a backend; what a death cost is restored and repeated before the call is made again."""

    backend: Backend
    cohort: Callable[[int], Sequence[ClientId]]  # round -> its participants
    keeper: Keeper | None
    note: Note
    max_attempts: int
    settle: Callable[[], None]  # wait until a commit that is being written is done
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

    def round(self, t: int, evaluate: bool, progress: Callable[[int], None], store: Store | None) -> RoundReport:
        """Run round `t`, which follows `at`. store: where its commit goes, if it is to be one."""
        try:
            report = self(lambda: self.backend.round(t, self.cohort(t), evaluate, progress, store=store))
        except OSError as error:
            raise self.keeper.commits.failure(t, error) if self.keeper and store else error from error
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
        with contextlib.suppress(LostError):  # a commit went with what died
            self.settle()
        commit = self._latest()
        base = commit.round if commit else 0
        repeat = self.at - base
        self.note(
            f"{lost}; going back to {f'the commit of round {base}' if commit else 'the start'}"
            + (f" and repeating {repeat} round{'s' if repeat > 1 else ''}" if repeat else "")
        )
        for text in self.backend.recover():
            self.note(text)
        if commit and self.keeper:
            commits = self.keeper.commits
            self.backend.restore(commits.clients(commit), commits.server(commit))
        for t in range(base + 1, self.at + 1):
            self.backend.round(t, self.cohort(t), False, lambda done: None, self.failed.get(t, ()))

    def _latest(self) -> Commit | None:
        if self.keeper is None:
            return None
        commits = self.keeper.commits
        commits.litter = True  # files of a commit that was cut off
        told = len(commits.damage)
        commit = commits.latest()
        for text in commits.damage[told:]:
            self.note(text)
        return commit
