"""Runs the cells of a sweep as Ray tasks, on this machine or a cluster, and large ones with client actors.

An attempt resumes the cell's latest run, if it has one. So Ray may repeat it at any time.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from raysim.common import archive
from raysim.common.errors import RaysimError, RunError, ScenarioError
from raysim.common.files import reason
from raysim.common.results import ClientRow, RunCard, Status
from raysim.comparison.sweep_card import SWEEP_LOCK
from raysim.engine.stop import Stop
from raysim.report.units import plural
from raysim.runs.find import find_run
from raysim.runs.preview import client_memory_mb, samples_mb
from raysim.runs.resume import LostCheckpointsError
from raysim.runs.run import Run, run
from raysim.runs.signals import interruptible
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import Cell, CellState, Sweep, in_quotes, note_failure, placed, state_of
from raysim.sweeps.copies import replaced, upload
from raysim.tracking.parent import ParentRun
from raysim.tracking.store import database_path, resolve_uri

if TYPE_CHECKING:
    from raysim.engine.ray.tasks import Tasks

logger = logging.getLogger(__name__)

LOCKED_S = 180.0
"""How long the run folder of a lost attempt may stay locked, in seconds: a node that lost its network ends its
processes after a minute, and a file server releases their locks some time later."""


Show = Callable[[Sequence[tuple[str, int]], bool], None]
"""(running cells with their last finished rounds, whether they are to end after their round) -> None."""


def run_cells(
    left: Sequence[CellState],
    states: dict[str, CellState],
    sweep: Sweep,
    parent: ParentRun,
    tasks: Tasks,
    show: Show,
) -> None:
    """Run the cells in `left`, and update `states`. Raises `KeyboardInterrupt` after Ctrl-C.

    show: called often with the progress.
    """
    show([], False)  # Ray takes seconds to start
    again = Counter(one.reason for one in left if one.state == "waiting" and one.reason)
    for why, count in again.items():
        logger.warning(f"{plural(count, 'cell')} to run again: {why}")
    large = [one for one in left if is_large(one.cell, tasks.limit)]
    names = {one.cell.name for one in large}
    if small := [one for one in left if one.cell.name not in names]:
        _run_as_tasks(small, states, sweep, parent, tasks, show)
    if large:
        tasks.close()  # client actors start a Ray of their own
    for state in large:
        name, stop = state.cell.name, Stop()

        def report(done: int, name: str = name, stop: Stop = stop) -> None:
            show([(name, done)], stop.requested)

        report(-1)
        if (task := _task(state, states, sweep, parent, "ray")) is not None:
            with interruptible(stop):
                outcome = run_cell(task, stop, report)
            states[name] = state_after(outcome, state.cell, sweep)
        show([], False)
        if stop.requested:
            raise KeyboardInterrupt


def _run_as_tasks(
    left: list[CellState], states: dict[str, CellState], sweep: Sweep, parent: ParentRun, tasks: Tasks, show: Show
) -> None:
    """Run cells as Ray tasks until none is left. Raises `KeyboardInterrupt` after Ctrl-C."""
    tasks.connect()
    if tasks.several_nodes and database_path(parent.uri) is not None:
        logger.warning(
            "cells on nodes that do not share this machine's disk will not appear in MLflow's database; set "
            "MLFLOW_TRACKING_URI to a server that all nodes can reach"
        )
    # The first Ctrl-C waits until the current rounds are done, the second does not.
    stop, ending, expected = Stop(possible=True), False, len(left)
    with interruptible(stop):
        while left or tasks.running:
            if stop.requested and not ending:
                left, ending = [], True
                tasks.end()
            while left and tasks.has_room:
                state = left.pop(0)
                if (task := _task(state, states, sweep, parent, "in_process")) is not None:
                    if (run := state.resumable) is not None and tasks.several_nodes:
                        task = replace(task, run=run, files=packed(run))
                    tasks.start(state.cell.name, task, expected)
            for name, result in tasks.wait() if tasks.running else ():
                outcome = result if isinstance(result, Outcome) else Outcome(result)
                states[name] = state_after(outcome, states[name].cell, sweep, died=result is not outcome)
            show(list(tasks.running.items()), stop.requested)
        if stop.requested:
            raise KeyboardInterrupt


def is_large(cell: Cell, parallel: int | None) -> bool:
    """Return whether a cell asks for client actors, or exceeds a task's share of this machine's memory.

    parallel: number of tasks on this machine, or on all nodes of the cluster at RAY_ADDRESS, of which this machine is
    taken to have at most one per CPU; default: one per CPU.
    """
    scenario, resources = cell.scenario, cell.scenario.resources
    if scenario.backend == "in_process":
        return False
    numbers = (resources.actors, resources.clients_per_actor)
    if "backend" in scenario.given or numbers != ("auto", "auto") or resources.overrides:
        return True
    try:
        checked = Scenario.of(scenario)
    except ScenarioError:
        return False  # the task reports why it cannot run
    cpus = os.cpu_count() or 1
    at_once = min(parallel or cpus, cpus) if os.environ.get("RAY_ADDRESS") else parallel or cpus  # on this machine
    return client_memory_mb(checked) + samples_mb(checked) > psutil.virtual_memory().total / 2**20 / at_once


def _task(
    state: CellState, states: dict[str, CellState], sweep: Sweep, parent: ParentRun, backend: str
) -> CellTask | None:
    """Return the task of a cell; None if it cannot be made, which its state then says."""
    try:
        cell = prepared(state.cell, sweep, parent, backend)
    except ScenarioError as error:
        states[state.cell.name] = state_after(Outcome(str(error)), state.cell, sweep, died=True)
        return None
    return CellTask(cell, sweep.output, (sweep.output / SWEEP_LOCK).read_bytes())


def prepared(cell: Cell, sweep: Sweep, parent: ParentRun, backend: str) -> Cell:
    """Return a cell with the scenario to run, which means the same in any working directory.

    Raises `ScenarioError` if it cannot be made from the present files, or would be another run.
    """
    tracking = cell.scenario.tracking
    tags = {**tracking.tags, **parent.tags(), "sweep": sweep.name, "cell": cell.name}
    sets = [f"tracking.tags={in_quotes(tags)}", f"tracking.uri={in_quotes(parent.uri)}", f"backend={backend}"]
    if tracking.experiment is None:
        sets.append(f"tracking.experiment={in_quotes(sweep.name)}")
    if cell.scenario.init is not None:  # an id is that of a run below ./runs, where a task may have another folder
        with contextlib.suppress(ScenarioError):  # the cell then fails with this error
            sets.append(f"init.run={in_quotes(str(find_run(cell.scenario.init.run)))}")
    return replace(cell, scenario=placed(cell, sweep, sets))


def state_after(outcome: Outcome, cell: Cell, sweep: Sweep, died: bool = False) -> CellState:
    """Return the state of a cell after its task ended; logs why the cell is not done.

    died: whether the cell did not fail itself: it runs again with the next command.
    """
    if outcome.run is not None:
        try:
            unpack(outcome.files, outcome.run)
        except OSError as error:  # the next command runs the cell again
            outcome, died = Outcome(f"{outcome.run} cannot be written ({reason(error)})"), True
    state = state_of(cell, sweep.output)
    if state.state == "done":
        outcome = replace(outcome, error="")
    if outcome.error:
        logger.warning(f"{cell.name}: {outcome.error}")
        if state.folder is None and not died:
            with contextlib.suppress(OSError):  # on a full disk the cell stays waiting; the reason is logged above
                note_failure(cell, sweep.output, outcome.error)
                state = state_of(cell, sweep.output)
    if state.folder is not None:
        try:
            upload(sweep, state.folder)
        except RunError as error:  # the end of the sweep tries again
            logger.warning(f"{cell.name}: {error}")
    return replace(state, reason=state.reason or outcome.error)


@dataclass(frozen=True)
class CellTask:
    """A cell to run, as plain data that can be sent to another process."""

    cell: Cell  # with the scenario to run
    output: Path  # the sweep's folder
    lock: bytes  # the content of the sweep's lock: a node where it differs does not share the driver's disk
    run: Path | None = None  # the run to resume, if `files` has its content
    files: bytes = b""  # the packed run folder, for a node that does not share the driver's disk


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell."""

    error: str = ""  # empty: the cell has all its rounds, or was asked to stop
    run: Path | None = None  # the run folder, if `files` has its content
    files: bytes = b""  # the packed run folder of a node that does not share the driver's disk


@dataclass
class RoundReporter:
    """A tracker that only reports each finished round."""

    report: Callable[[int], None]

    def open(self, card: RunCard) -> None:
        """Do nothing."""

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Report round `t`."""
        self.report(t)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Do nothing."""


def run_cell(task: CellTask, stop: Stop, report: Callable[[int], None]) -> Outcome:
    """Run or resume a cell. Errors are returned in the outcome, so that they do not stop other cells.

    report: called with the number of each finished round. stop: once `requested`, the cell ends after its round.
    On a node that does not share the driver's disk, the run folder is at the same path until it is packed.
    """
    apart, error = False, ""
    try:
        lock = task.output / SWEEP_LOCK
        apart = not lock.exists() or lock.read_bytes() != task.lock
        if apart and task.run is not None:
            unpack(task.files, task.run)
        if apart and (database := database_path(resolve_uri(task.cell.scenario.tracking.uri))):
            database.parent.mkdir(parents=True, exist_ok=True)  # this node may lack the folders of the driver's
        _run_here(task, stop, report)
    except KeyboardInterrupt:
        pass  # the run folder records the interruption
    except RaysimError as failure:
        error = str(failure)
    except Exception:  # a defect of raysim, or of the user's code where raysim expects no error
        error = traceback.format_exc().rstrip()
    folder = state_of(task.cell, task.output).folder if apart else None
    if folder is None:
        return Outcome(error)
    outcome = Outcome(error, folder, packed(folder))
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _run_here(task: CellTask, stop: Stop, report: Callable[[int], None]) -> None:
    """Run or resume a cell whose folder is on this machine's disk."""
    stop.after = task.cell.until
    trackers = [RoundReporter(report)]
    state = _unlocked(task)
    if state.state == "done":  # the process of an earlier attempt died after the end of the run
        return
    if state.resumable is not None:
        with contextlib.suppress(LostCheckpointsError):  # then the cell begins again
            # Not with the run's own scenario: the data, MLflow and the backend may be others than when it began.
            Run(state.resumable).resume(scenario=task.cell.scenario, quiet=True, trackers=trackers, stop=stop)
            return
    run(task.cell.scenario, quiet=True, trackers=trackers, stop=stop)


def _unlocked(task: CellTask) -> CellState:
    """Wait for an earlier process that may still hold the cell's run folder, and return the state of the cell."""
    until_s = time.monotonic() + LOCKED_S
    while (state := state_of(task.cell, task.output)).state in ("running", "closing") and time.monotonic() < until_s:
        time.sleep(0.5)
    return state


def packed(folder: Path) -> bytes:
    """Return the files of a run folder as an archive, which Ray's object store brings to another node."""
    buffer = io.BytesIO()
    archive.write(folder, buffer, checkpoints=True)
    return buffer.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Replace a run folder by the files that `packed` returned. Raises `OSError` if it cannot be written."""
    with replaced(folder) as new, zipfile.ZipFile(io.BytesIO(files)) as received:
        received.extractall(new)
