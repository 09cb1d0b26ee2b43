"""Runs one cell of a sweep in the calling process: a Ray task on any node or, with client actors, the driver.

An attempt resumes the cell's latest run, if it has one. So Ray may repeat it at any time.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from raysim.common import archive
from raysim.common.errors import RaysimError
from raysim.common.results import LOCK, ClientRow, RunCard, Status
from raysim.comparison.sweep_card import SWEEP_LOCK
from raysim.engine.stop import Stop
from raysim.runs.resume import LostCheckpointsError
from raysim.runs.run import Run, run
from raysim.sweeps.cells import Cell
from raysim.sweeps.state import CellState, state_of
from raysim.tracking.store import database_path, resolve_uri

LOCKED_S = 180.0
"""How long the run folder of a lost attempt may stay locked, in seconds: a node that lost its network ends its
processes after a minute, and a file server releases their locks some time later."""


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
        with suppress(LostCheckpointsError):  # then the cell begins again
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


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Yield a new run folder, which takes the place of `folder` at the end of the block."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".received-", dir=folder.parent) as temporary:
        new = Path(temporary, "new")
        (new / LOCK).parent.mkdir(parents=True)
        (new / LOCK).touch()  # archives have no hidden files, and a run that was killed without it counts as running
        yield new
        if folder.exists():
            folder.rename(Path(temporary, "old"))  # removed with the temporary folder, once the new one is there
        new.rename(folder)
