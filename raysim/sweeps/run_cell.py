"""Runs one cell of a sweep in the calling process: a Ray task on any node or, with client actors, the driver."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raysim.common.errors import RaysimError
from raysim.common.files import is_locked, reason
from raysim.common.results import LOCK, ClientRow, RunCard, Status
from raysim.engine.stop import Stop
from raysim.runs.resume import LostCheckpointsError
from raysim.runs.run import Run, run
from raysim.scenario.parse import ParsedScenario
from raysim.tracking.store import database_path, resolve_uri

LOCKED_S = 180.0
"""How long the run folder of a lost task may stay locked, in seconds: a node that lost its network ends its processes
after a minute, and a file server releases their locks some time later."""


@dataclass(frozen=True)
class CellTask:
    """A cell to run, as plain data that can be sent to another process."""

    scenario: ParsedScenario
    resumed: Path | None = None  # the run folder to resume; None: a new run
    until: int | None = None  # the round after which the run is interrupted; None: after its last
    marker: tuple[Path, bytes] | None = None  # a file of the driver and its content; None: the task runs on its disk
    files: bytes | None = None  # the packed folder `resumed`, for a node that does not see the marker


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell."""

    folder: Path | None  # the run folder, if it was created
    error: str = ""  # empty: the cell has all its rounds, or was asked to stop
    note: str = ""  # for the user
    files: bytes | None = None  # the packed run folder, if the node does not see the driver's disk


@dataclass
class RoundReporter:
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


def run_cell(task: CellTask, stop: Stop, report: Callable[[int], None]) -> Outcome:
    """Run or resume a cell. Errors are returned in the outcome, so that they do not stop other cells.

    report: called with the number of each finished round. stop: once `requested`, the cell ends after its round.
    On a node that does not share the driver's disk, the run folder is at the same path until it is packed.
    """
    if task.marker is None or _sees(*task.marker):
        return _run_here(task, stop, report)
    try:
        if task.resumed is not None and task.files is not None:
            unpack(task.files, task.resumed)
        if database := database_path(resolve_uri(task.scenario.tracking.uri)):
            database.parent.mkdir(parents=True, exist_ok=True)  # this node may lack the folders of the driver's
        outcome = _run_here(task, stop, report)
        folder = outcome.folder or task.resumed
        if folder is None or not folder.exists():
            return outcome
        outcome = replace(outcome, folder=folder, files=pack(folder))
        shutil.rmtree(folder, ignore_errors=True)
        return outcome
    except OSError as error:
        return Outcome(None, f"{error.filename or task.scenario.output}: {reason(error)} (on the node of the cell)")


def _sees(marker: Path, content: bytes) -> bool:
    return marker.exists() and marker.read_bytes() == content


def _run_here(task: CellTask, stop: Stop, report: Callable[[int], None]) -> Outcome:
    """Run or resume a cell whose folder is on this machine's disk."""
    rounds = RoundReporter(report)
    stop.after = task.until
    note = ""
    try:
        try:
            if task.resumed is not None:
                _wait_until_unlocked(task.resumed / LOCK)
                # Not with the run's own scenario: the data, MLflow and the backend may be others than when it began.
                Run(task.resumed).resume(scenario=task.scenario, quiet=True, trackers=[rounds], stop=stop)
                return Outcome(rounds.folder)
        except LostCheckpointsError as error:
            note = f"the cell begins again, because its checkpoints are lost: {error}"
        run(task.scenario, quiet=True, trackers=[rounds], stop=stop)
    except KeyboardInterrupt:
        return Outcome(rounds.folder, note=note)  # the run folder records the interruption
    except RaysimError as error:
        return Outcome(rounds.folder, str(error), note)
    except Exception:  # a defect of raysim, or of the user's code where raysim expects no error
        return Outcome(rounds.folder, traceback.format_exc().rstrip(), note)
    return Outcome(rounds.folder, note=note)


def _wait_until_unlocked(lock: Path) -> None:
    """Wait for the end of a process that Ray has given up, for example because its node lost the network."""
    until_s = time.monotonic() + LOCKED_S
    while is_locked(lock) and time.monotonic() < until_s:
        time.sleep(0.5)


def pack(folder: Path) -> bytes:
    """Return the files of a run folder as a ZIP archive, which Ray's object store brings to another node."""
    buffer = io.BytesIO()
    # Parquet, PNG and weights are already compressed.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return buffer.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Replace `folder` by the files that `pack` returned. Raises `OSError` if it cannot be written."""
    with replaced(folder) as new, zipfile.ZipFile(io.BytesIO(files)) as archive:
        archive.extractall(new)


@contextlib.contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Yield a new folder, which takes the place of `folder` at the end of the block."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".received-", dir=folder.parent) as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        yield new
        if folder.exists():
            folder.rename(Path(temporary, "old"))  # removed with the temporary folder, once the new one is there
        new.rename(folder)
