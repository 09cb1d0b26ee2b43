"""Runs the cells of a sweep as Ray tasks, on this machine or a cluster; large cells use client actors.

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
from raysim.engine.stop import Stop
from raysim.results.store import database_path, resolve_uri
from raysim.results.units import plural
from raysim.runs.find import find_run
from raysim.runs.preview import client_memory_mb, samples_mb
from raysim.runs.resume import LostCheckpointsError
from raysim.runs.run import Run, run
from raysim.runs.signals import interruptible
from raysim.study.cells import Cell, CellState, Sweep, in_quotes, placed, state_of, valid
from raysim.study.copies import replaced, upload
from raysim.study.sweep_card import SWEEP_LOCK

if TYPE_CHECKING:
    from raysim.engine.ray.tasks import Tasks

logger = logging.getLogger(__name__)

LOCKED_S = 180.0
"""Seconds for which the run folder of a lost attempt may stay locked. A node without network ends its processes after a
minute, and a file server releases their locks some time later."""


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep at one moment."""

    states: Sequence[CellState]
    running: Sequence[tuple[str, int]]  # (name of a cell, its last finished round); -1 while the cell starts
    stopping: bool = False  # whether running cells end after their round, because of Ctrl-C


Show = Callable[[SweepProgress], None]


def run_cells(
    left: Sequence[CellState],
    states: dict[str, CellState],
    sweep: Sweep,
    uri: str,
    tasks: Tasks,
    show: Show,
) -> None:
    """Run the cells in `left` and update `states`. Raises `KeyboardInterrupt` after Ctrl-C.

    uri: address of the MLflow store. show: called often with the progress of the cells in `states`.
    """
    show(SweepProgress([*states.values()], []))  # shown before Ray starts, which takes seconds
    again = Counter(one.reason for one in left if one.state == "waiting" and one.reason)
    for why, count in again.items():
        logger.warning(f"{plural(count, 'cell')} to run again: {why}")
    large = [one for one in left if is_large(one.cell, tasks.limit)]
    names = {one.cell.name for one in large}
    if small := [one for one in left if one.cell.name not in names]:
        _run_as_tasks(small, states, sweep, uri, tasks, show)
    if large:
        tasks.close()  # the Ray of the tasks must end, because client actors start their own Ray
    for state in large:
        name, stop = state.cell.name, Stop()

        def report(done: int, name: str = name, stop: Stop = stop) -> None:
            show(SweepProgress([*states.values()], [(name, done)], stop.requested))

        report(-1)
        if (task := _task(state, states, sweep, uri, "ray")) is not None:
            with interruptible(stop):
                outcome = run_cell(task, stop, report)
            states[name] = state_after(outcome, state.cell, sweep)
        show(SweepProgress([*states.values()], []))
        if stop.requested:
            raise KeyboardInterrupt


def _run_as_tasks(
    left: list[CellState], states: dict[str, CellState], sweep: Sweep, uri: str, tasks: Tasks, show: Show
) -> None:
    """Run cells as Ray tasks until all have ended. Raises `KeyboardInterrupt` after Ctrl-C."""
    tasks.connect()
    if tasks.several_nodes and database_path(uri) is not None:
        logger.warning(
            "cells on nodes that do not share this machine's disk will not appear in MLflow's database; set "
            "MLFLOW_TRACKING_URI to a server that all nodes can reach"
        )
    # After the first Ctrl-C, current rounds still finish; the second ends the tasks at once.
    stop, ending, expected = Stop(possible=True), False, len(left)
    with interruptible(stop):
        while left or tasks.running:
            if stop.requested and not ending:
                left, ending = [], True
                tasks.end()
            while left and tasks.has_room:
                state = left.pop(0)
                if (task := _task(state, states, sweep, uri, "in_process")) is not None:
                    if state.folder is not None and tasks.several_nodes:
                        task = replace(task, run=state.folder, files=packed(state.folder))
                    tasks.start(state.cell.name, task, expected)
            for name, result in tasks.wait() if tasks.running else ():
                outcome = result if isinstance(result, Outcome) else Outcome(result)
                states[name] = state_after(outcome, states[name].cell, sweep)
            show(SweepProgress([*states.values()], list(tasks.running.items()), stop.requested))
        if stop.requested:
            raise KeyboardInterrupt


def is_large(cell: Cell, parallel: int | None) -> bool:
    """Return whether a cell requests client actors, or needs more than one task's share of this machine's memory.

    parallel: number of tasks on this machine, or on all nodes of the cluster at RAY_ADDRESS, of which this machine is
    taken to have at most one per CPU; default: one per CPU.
    """
    scenario, resources = cell.scenario, cell.scenario.resources
    if scenario.backend == "in_process":
        return False
    numbers = (resources.actors, resources.clients_per_actor)
    if "backend" in scenario.given or numbers != ("auto", "auto") or resources.overrides:
        return True
    if (checked := valid(scenario)) is None:
        return False
    cpus = os.cpu_count() or 1
    # Number of tasks on this machine.
    at_once = min(parallel or cpus, cpus) if os.environ.get("RAY_ADDRESS") else parallel or cpus
    return client_memory_mb(checked) + samples_mb(checked) > psutil.virtual_memory().total / 2**20 / at_once


def _task(state: CellState, states: dict[str, CellState], sweep: Sweep, uri: str, backend: str) -> CellTask | None:
    """Return the task for a cell; None if it cannot be created, for the reason in the cell's state."""
    try:
        cell = prepared(state.cell, sweep, uri, backend)
    except ScenarioError as error:
        states[state.cell.name] = state_after(Outcome(str(error)), state.cell, sweep)
        return None
    return CellTask(cell, sweep.output, (sweep.output / SWEEP_LOCK).read_bytes())


def prepared(cell: Cell, sweep: Sweep, uri: str, backend: str) -> Cell:
    """Return a cell whose scenario has the same meaning in any working directory.

    Raises `ScenarioError` if it cannot be made from the present files, or would be another run.
    """
    tracking = cell.scenario.tracking
    tags = {**tracking.tags, "sweep": sweep.name, "cell": cell.name}
    sets = [f"tracking.tags={in_quotes(tags)}", f"tracking.uri={in_quotes(uri)}", f"backend={backend}"]
    if tracking.experiment is None:
        sets.append(f"tracking.experiment={in_quotes(sweep.name)}")
    if cell.scenario.init is not None:  # an id names a run below ./runs, but a task may have another working directory
        with contextlib.suppress(ScenarioError):  # the cell itself will fail with this error
            sets.append(f"init.run={in_quotes(str(find_run(cell.scenario.init.run)))}")
    return replace(cell, scenario=placed(cell, sweep, sets))


def state_after(outcome: Outcome, cell: Cell, sweep: Sweep) -> CellState:
    """Return the state of a cell after the end of its task. Logs why the cell is not done.

    A cell that failed before it had a run folder is waiting: the next command runs it again.
    """
    if outcome.run is not None:
        try:
            unpack(outcome.files, outcome.run)
        except OSError as error:  # the next command will run the cell again
            outcome = Outcome(f"{outcome.run} cannot be written ({reason(error)})")
    state = state_of(cell, sweep.output)
    if state.state == "done":
        outcome = replace(outcome, error="")
    if outcome.error:
        logger.warning(f"{cell.name}: {outcome.error}")
    if state.folder is not None:
        try:
            upload(sweep, state.folder)
        except RunError as error:  # the upload is repeated at the end of the sweep
            logger.warning(f"{cell.name}: {error}")
    return replace(state, reason=state.reason or outcome.error)


@dataclass(frozen=True)
class CellTask:
    """A cell to run, in plain data for another process."""

    cell: Cell  # the cell, with its final scenario
    output: Path  # the sweep's folder
    # Content of the sweep's lock file; if a node reads another content, it does not share the driver's disk.
    lock: bytes
    run: Path | None = None  # the run to resume, whose content is in `files`
    files: bytes = b""  # the packed run folder, for a node that does not share the driver's disk


@dataclass(frozen=True)
class Outcome:
    """The result of a cell's task."""

    error: str = ""  # error message; "": the cell has all its rounds, or was asked to stop
    run: Path | None = None  # the run folder, whose content is in `files`
    files: bytes = b""  # the packed run folder, from a node that does not share the driver's disk


@dataclass
class RoundReporter:
    """A tracker that only reports finished rounds."""

    report: Callable[[int], None]

    def open(self, card: RunCard) -> None:
        """Do nothing."""

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Report round `t`."""
        self.report(t)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Do nothing."""


def run_cell(task: CellTask, stop: Stop, report: Callable[[int], None]) -> Outcome:
    """Run or resume a cell. Errors are returned in the outcome, so that other cells continue.

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
            # The folder exists on the driver's machine, but perhaps not on this node.
            database.parent.mkdir(parents=True, exist_ok=True)
        _run_here(task, stop, report)
    except KeyboardInterrupt:
        pass  # the run folder shows that the run was interrupted
    except RaysimError as failure:
        error = str(failure)
    except Exception:  # an unexpected error of raysim or of the user's code
        error = traceback.format_exc().rstrip()
    folder = state_of(task.cell, task.output).folder if apart else None
    if folder is None:
        return Outcome(error)
    outcome = Outcome(error, folder, packed(folder))
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _run_here(task: CellTask, stop: Stop, report: Callable[[int], None]) -> None:
    """Run or resume a cell whose folder is on a disk of this machine."""
    stop.after = task.cell.until
    trackers = [RoundReporter(report)]
    state = _unlocked(task)
    if state.state == "done":  # an earlier attempt finished the run, and then its process died
        return
    if state.folder is not None and (state.folder / "run.json").exists():  # else it died at its start
        with contextlib.suppress(LostCheckpointsError):  # without checkpoints, the cell starts again
            # The cell's scenario is used, not the run's, because addresses of data or MLflow, or the backend, may have
            # changed.
            Run(state.folder).resume(scenario=task.cell.scenario, quiet=True, trackers=trackers, stop=stop)
            return
    run(task.cell.scenario, quiet=True, trackers=trackers, stop=stop)


def _unlocked(task: CellTask) -> CellState:
    """Wait until no earlier process locks the cell's run folder, and return the state of the cell."""
    until_s = time.monotonic() + LOCKED_S
    while (state := state_of(task.cell, task.output)).state == "running" and time.monotonic() < until_s:
        time.sleep(0.5)
    return state


def packed(folder: Path) -> bytes:
    """Return the files of a run folder as an archive, which Ray's object store transfers to another node."""
    buffer = io.BytesIO()
    archive.write(folder, buffer, checkpoints=True)
    return buffer.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Replace a run folder by the files of an archive from `packed`. Raises `OSError` if that fails."""
    with replaced(folder) as new, zipfile.ZipFile(io.BytesIO(files)) as received:
        received.extractall(new)
