"""Runs the cells of a sweep as Ray tasks, on this machine or a cluster, and large ones with client actors."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psutil

from raysim.common.errors import RunError, ScenarioError
from raysim.common.files import reason
from raysim.comparison.sweep_card import SWEEP_LOCK
from raysim.engine.stop import Stop
from raysim.report.units import plural
from raysim.runs.find import find_run
from raysim.runs.preview import client_memory_mb, samples_mb
from raysim.runs.signals import interruptible, sigterm_kept
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import Cell, Sweep, in_quotes, placed
from raysim.sweeps.copies import upload_run
from raysim.sweeps.run_cell import CellTask, Outcome, pack, run_cell, unpack
from raysim.sweeps.state import CellState, note_failure, state_of
from raysim.tracking.parent import ParentRun
from raysim.tracking.store import database_path

if TYPE_CHECKING:
    from raysim.engine.ray.tasks import Ended, Tasks

logger = logging.getLogger(__name__)

DEATHS = 3
"""How often the process of a cell may die without a new round of the cell in between."""

Show = Callable[[Sequence[tuple[str, int]], bool], None]
"""(running cells with their last finished rounds, whether they are to end after their round) -> None."""


class Workers:
    """The Ray whose tasks run cells; it starts with the first cell and stays until the block ends."""

    def __init__(self, parallel: int | None) -> None:
        self.parallel = parallel
        self._stack = contextlib.ExitStack()
        self._tasks: Tasks | None = None

    @property
    def tasks(self) -> Tasks:
        """The tasks on Ray, which is started if it is not running."""
        from raysim.engine.ray.tasks import Tasks  # importing Ray takes a second

        if self._tasks is None:
            self._stack.enter_context(sigterm_kept())
            self._tasks = self._stack.enter_context(Tasks(run_cell, self.parallel))
        return self._tasks

    def close(self) -> None:
        """End the tasks and, if it was started for them, their Ray."""
        self._tasks = None
        self._stack.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: Any) -> bool:
        return bool(self._stack.__exit__(*error))


def run_cells(
    left: Sequence[CellState],
    states: dict[str, CellState],
    sweep: Sweep,
    parent: ParentRun,
    workers: Workers,
    show: Show,
) -> None:
    """Run the cells in `left`, and update `states`. Raises `KeyboardInterrupt` after Ctrl-C.

    show: called often with the progress.
    """
    show([], False)  # Ray takes seconds to start
    again = Counter(one.reason for one in left if one.state == "waiting" and one.reason)
    for why, count in again.items():
        logger.warning(f"{plural(count, 'cell')} to run again: {why}")
    large = [one for one in left if is_large(one.cell, workers.parallel)]
    names = {one.cell.name for one in large}
    small = [one for one in left if one.cell.name not in names]
    if small:
        _run_as_tasks(_Queue(small, states, sweep, parent, workers.tasks), show)
    if large:
        workers.close()  # client actors start a Ray of their own
    for state in large:
        name, stop, before = state.cell.name, Stop(), Stop()

        def report(done: int, name: str = name, stop: Stop = stop, before: Stop = before) -> None:
            show([(name, done)], stop.requested or before.requested)

        report(-1)
        with interruptible(before):
            states[name] = _run_with_actors(state, sweep, parent, stop, report)
        show([], False)
        if stop.requested or before.requested:
            raise KeyboardInterrupt


def _run_with_actors(
    state: CellState, sweep: Sweep, parent: ParentRun, stop: Stop, report: Callable[[int], None]
) -> CellState:
    """Run a cell in this process, as `raysim launch` does, and return its state."""
    try:
        task = task_of(state, sweep, parent, "ray")
    except ScenarioError as error:
        return waiting(state, sweep, str(error))
    return state_after(run_cell(task, stop, report), state.cell, sweep)


def _run_as_tasks(queue: _Queue, show: Show) -> None:
    """Run cells as Ray tasks until none is left. Raises `KeyboardInterrupt` after Ctrl-C."""
    # The first Ctrl-C waits until the current rounds are done, the second does not.
    stop = Stop(possible=True, saved_round=lambda: False)
    tasks, ending = queue.tasks, False
    tasks.expected = len(queue.left)
    with interruptible(stop):
        while queue.left or tasks.running:
            if stop.requested:
                queue.left.clear()
                if not ending:
                    tasks.end()
                    ending = True
            while queue.left and tasks.has_room:
                queue.start_cell(queue.left.pop(0))
            for one in tasks.wait():
                queue.end_cell(one)
            show(list(tasks.running.items()), stop.requested)
        if stop.requested:
            raise KeyboardInterrupt


@dataclass
class _Queue:
    """The cells that are still to run as tasks, and what happens to a cell whose task ends or dies."""

    left: list[CellState]
    states: dict[str, CellState]
    sweep: Sweep
    parent: ParentRun
    tasks: Tasks
    _deaths: Counter[tuple[str, int]] = field(default_factory=Counter)  # (cell, its rounds) -> number of deaths

    def start_cell(self, state: CellState) -> None:
        """Start a cell, unless its task cannot be made."""
        try:
            lock = self.sweep.output / SWEEP_LOCK  # it names this process, so another disk has no such file
            task = replace(task_of(state, self.sweep, self.parent, "in_process"), marker=(lock, lock.read_bytes()))
            if task.resumed is not None and self.tasks.several_nodes:
                task = replace(task, files=pack(task.resumed))
        except ScenarioError as error:
            self.states[state.cell.name] = waiting(state, self.sweep, str(error))
        except OSError as error:
            why = f"{error.filename or state.folder} cannot be read ({reason(error)})"
            self.states[state.cell.name] = waiting(state, self.sweep, why)
        else:
            self.tasks.start(state.cell.name, task)

    def end_cell(self, one: Ended) -> None:
        """Update the state of a cell whose task ended. A cell whose process died goes back into the queue."""
        cell = self.states[one.name].cell
        if one.result is not None:
            self.states[one.name] = self._after(one.result, cell)
            return
        state = self.states[one.name] = state_of(cell, self.sweep)
        if state.state == "done":  # the process died after the end of the run
            return
        self._deaths[one.name, state.rounds] += 1
        often = self._deaths[one.name, state.rounds]
        if one.final or often >= DEATHS:
            times = "" if one.final else f", {often} times without a new round"
            self.states[one.name] = waiting(state, self.sweep, f"{one.death}{times}")
        else:
            again = "is resumed" if state.resumable else "begins again"
            logger.info(f"{one.name}: {one.death}; the cell {again} in another process")
            self.left.insert(0, state)

    def _after(self, outcome: Outcome, cell: Cell) -> CellState:
        if outcome.files is not None and outcome.folder is not None:
            if database_path(self.parent.uri) is not None:
                logger.warning(
                    f"{cell.name}: ran on a node that does not share the driver's disk, so it does not appear in "
                    f"MLflow's database {self.parent.uri}; set MLFLOW_TRACKING_URI to a server that all nodes can reach"
                )
            try:
                unpack(outcome.files, outcome.folder)
            except OSError as error:
                lost = f"its run folder {outcome.folder} cannot be written ({reason(error)}), so the run is lost"
                return waiting(CellState(cell, "waiting"), self.sweep, outcome.error or lost)
        if outcome.note:
            logger.info(f"{cell.name}: {outcome.note}")
        return state_after(outcome, cell, self.sweep)


def is_large(cell: Cell, parallel: int | None) -> bool:
    """Return whether a cell asks for client actors, or exceeds a task's share of this machine's memory.

    parallel: number of tasks on this machine, or on all nodes of the cluster at RAY_ADDRESS, of which this machine is
    taken to have at most one per CPU; default: one per CPU.
    """
    scenario = cell.scenario
    if scenario.backend == "in_process":
        return False
    if _asks_for_actors(scenario):
        return True
    try:
        checked = Scenario.of(scenario)
    except ScenarioError:
        return False  # the task reports why it cannot run
    cpus = os.cpu_count() or 1
    at_once = min(parallel or cpus, cpus) if os.environ.get("RAY_ADDRESS") else parallel or cpus  # on this machine
    return client_memory_mb(checked) + samples_mb(checked) > psutil.virtual_memory().total / 2**20 / at_once


def _asks_for_actors(scenario: ParsedScenario) -> bool:
    """Return whether the scenario sets `backend`, or client actors in `resources`: their number or `overrides`."""
    resources = scenario.resources
    numbers = (resources.actors, resources.clients_per_actor)
    return "backend" in scenario.given or numbers != ("auto", "auto") or bool(resources.overrides)


def task_of(state: CellState, sweep: Sweep, parent: ParentRun, backend: str) -> CellTask:
    """Return the task of a cell, which means the same in any working directory.

    Raises `ScenarioError` if the cell cannot be made from the present files, or would be another run.
    """
    scenario = state.cell.scenario
    tracking = scenario.tracking
    tags = {**tracking.tags, **parent.tags(), "sweep": sweep.name, "cell": state.cell.name}
    sets = [f"tracking.tags={in_quotes(tags)}", f"tracking.uri={in_quotes(parent.uri)}", f"backend={backend}"]
    if tracking.experiment is None:
        sets.append(f"tracking.experiment={in_quotes(sweep.name)}")
    if scenario.init is not None:  # an id is that of a run below ./runs, where a task may have another folder
        with contextlib.suppress(ScenarioError):  # the cell then fails with this error
            sets.append(f"init.run={in_quotes(str(find_run(scenario.init.run)))}")
    return CellTask(placed(state.cell, sweep, sets), state.folder if state.resumable else None, state.cell.until)


def waiting(state: CellState, sweep: Sweep, why: str) -> CellState:
    """Return the state of a cell that did not fail: it runs again once the cause is gone. Logs the cause."""
    logger.warning(f"{state.cell.name}: {why}")
    state = state_of(state.cell, sweep)
    return replace(state, reason=state.reason or why)


def state_after(outcome: Outcome, cell: Cell, sweep: Sweep) -> CellState:
    """Return the state of a cell after its task ended; logs why the cell is not done."""
    if outcome.folder is not None and not outcome.folder.exists():
        outcome = replace(outcome, error=f"the run folder {outcome.folder} does not exist; it was moved or deleted")
    if outcome.error:
        logger.warning(f"{cell.name}: {outcome.error}")
        if outcome.folder is None and state_of(cell, sweep).folder is None:
            with contextlib.suppress(OSError):  # on a full disk the cell stays waiting; the reason is logged above
                note_failure(cell, sweep, outcome.error)
    state = state_of(cell, sweep)
    if state.folder is not None:
        try:
            upload_run(sweep, state.folder)
        except RunError as error:  # the end of the sweep tries again
            logger.warning(f"{cell.name}: {error}")
    return state if state.state == "done" else replace(state, reason=state.reason or outcome.error)
