"""Runs cells in worker processes, on this machine or on the nodes of a cluster, which may die or share no disk."""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.common.errors import RunError, ScenarioError
from raysim.common.files import is_locked, reason
from raysim.common.results import LOCK
from raysim.engine.records import LostError
from raysim.engine.stop import Stop
from raysim.report.load import read_summary
from raysim.runs.find import find_run
from raysim.runs.signals import interruptible, sigterm_kept
from raysim.sweeps.cells import Cell, Sweep, in_quotes, placed, refuse_edited
from raysim.sweeps.copies import upload_run
from raysim.sweeps.run_cell import Outcome, Task, run_cell
from raysim.sweeps.state import CellState, note_failure, state_of
from raysim.tracking.parent import ParentRun
from raysim.tracking.store import database_path

if TYPE_CHECKING:
    from raysim.engine.ray.task_pool import Ended, TaskPool

logger = logging.getLogger(__name__)

DEATHS = 3
"""How often the workers of a cell may die without a new round of the cell in between."""

LOCKED_S = 180.0
"""How long the run folder of a lost worker may stay locked, in seconds: a node that lost its network ends its processes
after a minute, and a file server releases their locks some time later."""

MARKER = ".driver-"
"""Prefix of a file in the sweep's folder. A worker that does not see the file is on a node with another disk."""


class Workers:
    """Worker processes for whole cells, which start with the first one and stay warm until the block ends."""

    def __init__(self, parallel: int | None) -> None:
        self.parallel = parallel
        self.own_disks = False  # whether a worker is on a node that does not see the sweep's folder
        self._stack = contextlib.ExitStack()
        self._pool: TaskPool | None = None

    @property
    def pool(self) -> TaskPool:
        """The workers, started if they are not running."""
        from raysim.engine.ray.task_pool import task_pool  # importing Ray takes a second

        if self._pool is None:
            self._stack.enter_context(sigterm_kept())
            self._pool = self._stack.enter_context(task_pool(run_cell, self.parallel))
        return self._pool

    def close(self) -> None:
        """End the workers and, if it was started for them, their Ray."""
        self._pool = None
        self._stack.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: Any) -> bool:
        self._pool = None
        return bool(self._stack.__exit__(*error))


def run_in_workers(
    left: list[CellState],
    states: dict[str, CellState],
    sweep: Sweep,
    parent: ParentRun,
    workers: Workers,
    show: Callable[[Sequence[tuple[str, int]], bool], None],
) -> None:
    """Run the cells in `left` in worker processes, and update `states`. Raises `KeyboardInterrupt` after Ctrl-C.

    show: called often with the running cells, and whether they are to end after their round.
    """
    # The first Ctrl-C waits until the current rounds are done, the second does not.
    stop = Stop(possible=True, saved_round=lambda: False)
    ending = False
    pool = workers.pool
    pool.expected = len(left)
    with _marker(sweep) as marker, interruptible(stop):
        queue = _Queue(left, states, sweep, parent, workers, marker)
        while queue.unfinished or pool.running:
            if not stop.requested:
                queue.start_cells()
            else:
                queue.clear()
                if not ending:
                    pool.end()
                    ending = True
            for one in pool.wait():
                queue.end_cell(one)
            show(pool.running, stop.requested)
        if stop.requested:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _marker(sweep: Sweep) -> Iterator[Path]:
    """Yield a new file with a unique name in the sweep's folder, which only this process may use (`loop.lock`)."""
    try:
        for old in sweep.output.glob(f"{MARKER}*"):  # of a driver that was killed
            old.unlink(missing_ok=True)
        for old in sweep.output.glob("*/.received-*"):
            if not (old / "before").exists():  # else it holds the only copy of a run
                shutil.rmtree(old, ignore_errors=True)
        marker = sweep.output / f"{MARKER}{secrets.token_hex(8)}"
        marker.touch()
    except OSError as error:
        raise ScenarioError(f"{sweep.output} cannot be written ({reason(error)}); choose a writable folder") from None
    try:
        yield marker
    finally:
        with contextlib.suppress(OSError):
            marker.unlink(missing_ok=True)


@dataclass
class _Queue:
    """The cells that are still to run in workers, and what happens to a cell whose worker ends or dies."""

    left: list[CellState]
    states: dict[str, CellState]
    sweep: Sweep
    parent: ParentRun
    workers: Workers
    marker: Path
    _lost: dict[str, float] = field(default_factory=dict)  # cell whose worker died -> when its folder must be unlocked
    _deaths: dict[str, tuple[int, int]] = field(default_factory=dict)  # cell -> (its rounds, deaths since then)

    @property
    def unfinished(self) -> bool:
        """Whether cells are left that no worker runs."""
        return bool(self.left or self._lost)

    def start_cells(self) -> None:
        """Start cells while the pool has room."""
        self._requeue()
        pool = self.workers.pool
        while self.left and pool.has_room:
            state = self.left.pop(0)
            try:
                task = self._task(state)
            except ScenarioError as error:
                why = str(error)
            except OSError as error:
                why = f"{state.folder} cannot be sent to another node ({reason(error)})"
            else:
                pool.start(state.cell.name, task)
                continue
            # The cell did not fail: it waits until the cause is gone.
            self.states[state.cell.name] = state_after(Outcome(None, why, died=True), state.cell, self.sweep)

    def _task(self, state: CellState) -> Task:
        """The task of a cell, with its run folder if workers do not see the driver's disk."""
        task = replace(task_of(state, self.sweep, self.parent, "in_process"), marker=self.marker)
        if self.workers.own_disks and task.resumed is not None:
            from raysim.engine.ray.folders import send

            task = replace(task, sent=send(task.resumed))
        return task

    def clear(self) -> None:
        """Start no more cells."""
        self.left.clear()
        self._lost.clear()

    def end_cell(self, one: Ended) -> None:
        """Update the state of a cell whose task ended; one whose worker died may go back into the queue."""
        cell = self.states[one.name].cell
        if one.result is None:
            self._die(cell, one.death, one.final)
            return
        outcome: Outcome = one.result
        if outcome.unseen:  # the worker needs a copy of the run folder
            self._note_own_disks()
            self.left.insert(0, self.states[one.name])
            return
        try:
            outcome = self._received(outcome)
        except LostError:
            self._die(cell, "its node died before it had sent the run folder", False)
            return
        if outcome.note:
            logger.info(f"{cell.name}: {outcome.note}")
        self.states[one.name] = state_after(outcome, cell, self.sweep)

    def _received(self, outcome: Outcome) -> Outcome:
        """Write the run folder that a worker sent, if any. Raises `LostError` if it did not arrive."""
        if not outcome.sent or outcome.folder is None:
            return outcome
        from raysim.engine.ray.folders import receive

        self._note_own_disks()
        try:
            receive(outcome.sent, outcome.folder)
        except OSError as error:
            text = f"its run folder {outcome.folder} cannot be written ({reason(error)}), so the run is lost"
            return replace(outcome, folder=None, sent=(), error=outcome.error or text, died=True)
        return outcome

    def _note_own_disks(self) -> None:
        if not self.workers.own_disks and database_path(self.parent.uri) is not None:
            logger.warning(
                f"the nodes do not share a disk, so cells on other nodes do not appear in MLflow's database "
                f"{self.parent.uri}; set MLFLOW_TRACKING_URI to a server that all nodes can reach"
            )
        self.workers.own_disks = True

    def _die(self, cell: Cell, death: str, final: bool) -> None:
        """Put a cell whose worker died back into the queue, unless the cell may be the cause."""
        state = state_of(cell, self.sweep)
        before, deaths = self._deaths.get(cell.name, (-1, 0))
        deaths = 1 if state.rounds > before else deaths + 1
        self._deaths[cell.name] = (max(before, state.rounds), deaths)
        if state.state == "done":  # the worker died after the end of the run
            self.states[cell.name] = state
        elif final or deaths >= DEATHS:
            often = "" if final else f", {DEATHS} times without a new round"
            self.states[cell.name] = state_after(Outcome(None, f"{death}{often}", died=True), cell, self.sweep)
        else:
            saved = _saved_round(state)
            again = "begins again" if saved is None else f"is resumed after round {saved}"
            logger.info(f"{cell.name}: {death}; the cell {again} in another worker")
            self.states[cell.name] = state
            self._lost[cell.name] = time.monotonic() + LOCKED_S

    def _requeue(self) -> None:
        """Put lost cells back into the queue whose run folder no process uses any more."""
        for name, until_s in list(self._lost.items()):
            state = self.states[name] = state_of(self.states[name].cell, self.sweep)
            place = self.sweep.output / state.cell.folder_name
            locked = any(is_locked(lock) for lock in place.glob(f"*/{LOCK}"))
            if locked and time.monotonic() < until_s:
                continue
            del self._lost[name]
            if locked:
                text = f"a run in {place} is still in use by the process that was lost; run the same command later"
                logger.warning(f"{name}: {text}")
                self.states[name] = replace(state, reason=text)
            elif state.state != "done":
                self.left.insert(0, state)


def _saved_round(state: CellState) -> int | None:
    """The round of the last checkpoint that the run of a cell has recorded, if any."""
    if not state.resumable or state.folder is None:
        return None
    with contextlib.suppress(ScenarioError):
        saved = read_summary(state.folder).get("checkpoint")
        return saved.get("round") if isinstance(saved, dict) else None
    return None


def task_of(state: CellState, sweep: Sweep, parent: ParentRun, backend: str) -> Task:
    """The task of a cell's worker, which means the same in any working directory.

    Raises `ScenarioError` if the cell cannot be made from the present files, or would be another run.
    """
    refuse_edited(state.cell, sweep)
    scenario = state.cell.scenario
    tracking = scenario.tracking
    tags = {**tracking.tags, **parent.tags(), "sweep": sweep.name, "cell": state.cell.name}
    sets = [f"tracking.tags={in_quotes(tags)}", f"tracking.uri={in_quotes(parent.uri)}", f"backend={backend}"]
    if tracking.experiment is None:
        sets.append(f"tracking.experiment={in_quotes(sweep.name)}")
    if scenario.init is not None:  # an id is that of a run below ./runs, where a worker may have another folder
        with contextlib.suppress(ScenarioError):  # the cell then fails with this error
            sets.append(f"init.run={in_quotes(str(find_run(scenario.init.run)))}")
    return Task(placed(state.cell, sweep, sets), state.folder if state.resumable else None, state.cell.until)


def state_after(outcome: Outcome, cell: Cell, sweep: Sweep) -> CellState:
    """The state of a cell after its task ended; logs why the cell is not done."""
    if outcome.folder is not None and not outcome.folder.exists():
        outcome = replace(outcome, error=f"the run folder {outcome.folder} does not exist; it was moved or deleted")
    if outcome.error:
        logger.warning(f"{cell.name}: {outcome.error}")
        if outcome.folder is None and not outcome.died and state_of(cell, sweep).folder is None:
            with contextlib.suppress(OSError):  # on a full disk the cell stays waiting; the reason is logged above
                note_failure(cell, sweep, outcome.error)
    state = state_of(cell, sweep)
    if state.folder is not None:
        try:
            upload_run(sweep, state.folder)
        except RunError as error:  # the end of the sweep tries again
            logger.warning(f"{cell.name}: {error}")
    return state if state.state == "done" else replace(state, reason=state.reason or outcome.error)
