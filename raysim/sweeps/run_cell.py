"""Runs one cell of a sweep in the calling process, as each of the sweep's workers does."""

from __future__ import annotations

import contextlib
import shutil
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysim.common.errors import RaysimError
from raysim.common.files import reason
from raysim.common.results import ClientRow, RunCard, Status
from raysim.engine.stop import Stop
from raysim.runs.resume import LostCheckpointsError
from raysim.runs.run import Run, run
from raysim.scenario.parse import ParsedScenario
from raysim.tracking.store import database_path, resolve_uri


@dataclass(frozen=True)
class Task:
    """A worker's task, as plain data that can be sent to another process."""

    scenario: ParsedScenario
    resumed: Path | None = None  # the run folder to resume; None: a new run
    until: int | None = None  # the round after which the run is interrupted; None: after its last
    marker: Path | None = None  # a file on the driver's disk; None: the task runs on this disk
    sent: tuple[Any, ...] = ()  # the files of `resumed`, for a worker that does not see the marker


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell."""

    folder: Path | None  # the run folder, if it was created
    error: str = ""  # empty: the cell has all its rounds, or was asked to stop
    died: bool = False  # whether the worker process died
    note: str = ""  # for the user
    sent: tuple[Any, ...] = ()  # the files of the run folder, if the worker does not see the driver's disk
    unseen: bool = False  # whether nothing was done, because the worker has no copy of the run folder to resume


@dataclass
class Rounds:
    """A tracker that only reports each finished round."""

    report: Callable[[int], None]
    folder: Path | None = None

    def open(self, card: RunCard) -> None:
        """Remember the run folder."""
        self.folder = card.folder

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Report round `t`."""
        self.report(t)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Do nothing."""


def run_cell(task: Task, stop: Stop, report: Callable[[int], None]) -> Outcome:
    """Run or resume a cell. Errors are returned in the outcome, so that they do not stop other cells.

    report: called with the number of each finished round. stop: once `requested`, the cell ends after its round.
    On a node that does not share the driver's disk, the run folder is at the same path until its files are sent.
    """
    if task.marker is None or task.marker.exists():
        return _run_here(task, stop, report)
    from raysim.engine.ray.folders import receive, send

    try:
        if task.resumed is not None:
            if not task.sent:
                return Outcome(None, unseen=True)
            receive(task.sent, task.resumed)
        _make_folder_of_database(task.scenario)
        outcome = _run_here(task, stop, report)
        folder = outcome.folder or task.resumed
        if folder is None or not folder.exists():
            return outcome
        sent = send(folder)
        _remove(folder)
        return replace(outcome, sent=sent)
    except OSError as error:
        return Outcome(None, f"{error.filename or task.scenario.output}: {reason(error)} (on the node of the cell)")


def _make_folder_of_database(scenario: ParsedScenario) -> None:
    """Make the folder of MLflow's database on this node, which may lack the folders of the driver's node."""
    if database := database_path(resolve_uri(scenario.tracking.uri)):
        database.parent.mkdir(parents=True, exist_ok=True)


def _remove(folder: Path) -> None:
    """Remove a run folder that was sent to the driver, and the folders around it that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
        folder.parent.parent.rmdir()


def _run_here(task: Task, stop: Stop, report: Callable[[int], None]) -> Outcome:
    """Run or resume a cell whose folder is on this machine's disk."""
    rounds = Rounds(report)
    stop.after = task.until
    note = ""
    try:
        try:
            if task.resumed is not None:
                # Not with the run's own scenario: the data, MLflow and the backend may be others than when it began.
                Run(task.resumed).resume(scenario=task.scenario, quiet=True, trackers=[rounds], stop=stop)
                return Outcome(rounds.folder)
        except LostCheckpointsError as error:
            note = f"the cell begins again, because its checkpoints are lost: {error}"
        run(task.scenario, quiet=True, trackers=[rounds], stop=stop)
    except KeyboardInterrupt:
        return Outcome(rounds.folder, note=note)  # the run folder records the interruption
    except RaysimError as error:
        return Outcome(rounds.folder, str(error), note=note)
    except Exception:  # a defect of raysim, or of the user's code where raysim expects no error
        return Outcome(rounds.folder, traceback.format_exc().rstrip(), note=note)
    return Outcome(rounds.folder, note=note)
