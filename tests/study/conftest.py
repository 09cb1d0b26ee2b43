"""What the tests of sweeps share: a pool that runs cells in this process, and loses them where a test asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from raysim.engine.ray import tasks as ray_tasks
from raysim.engine.stop import Stop
from raysim.study.workers import CellTask, Outcome, run_cell


class KilledError(BaseException):
    """The driver and its workers were killed."""


@dataclass
class Pool:
    """A pool of one worker in this process, in the place of `Tasks`.

    kill_at: the task after whose first round everything is killed, the driver included. lost: the rounds after which
    the process of a cell dies, of each attempt; -1: before the run begins. dead: whether Ray then gives up. when_dead:
    called after each loss. several_nodes: whether the tasks do not see the driver's disk.
    """

    kill_at: int = 0
    lost: dict[str, list[int]] = field(default_factory=dict)
    dead: bool = False
    when_dead: Callable[[], object] = lambda: None
    several_nodes: bool = False
    rounds: list[tuple[str, int]] = field(default_factory=list)  # (cell, round) of every round that was run
    given: list[CellTask] = field(default_factory=list)
    stop: Stop = field(default_factory=Stop)  # one for all tasks, as a worker has
    running: dict[str, int] = field(default_factory=dict)

    limit = 1

    def connect(self) -> None: ...

    def close(self) -> None: ...

    def end(self) -> None: ...

    def __enter__(self) -> Pool:
        self.running = {}
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def tasks(self) -> int:
        return len(self.given)

    @property
    def has_room(self) -> bool:
        return not self.running

    @property
    def done(self) -> list[tuple[str, int]]:
        return [one for one in self.rounds if one[1] >= 1]  # before round 1, clients are only tested

    def start(self, name: str, task: CellTask, expected: int) -> None:
        self.given.append(replace(task, lock=b"of another driver") if self.several_nodes else task)
        self.running = {name: -1}

    def wait(self) -> list[tuple[str, Any]]:
        (name,), self.running, task = self.running, {}, self.given[-1]
        if self.tasks == self.kill_at:
            stop = Stop()

            def report(t: int) -> None:
                self.rounds.append((name, t))
                stop.requested = True

            run_cell(task, stop, report)
            raise KilledError
        for last in self.lost.get(name, []):
            if last >= 0:
                assert self.run(name, replace(task, cell=replace(task.cell, until=last))).error == ""
            self.when_dead()
        return [(name, "its node died" if self.dead else self.run(name, task))]

    def run(self, name: str, task: CellTask) -> Outcome:
        return run_cell(task, self.stop, lambda t: self.rounds.append((name, t)))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, workplace: Path) -> Pool:
    """Cells run one after another in this process, not in Ray's."""
    pool = Pool()
    monkeypatch.setattr(ray_tasks, "Tasks", lambda function, limit: pool)
    return pool
