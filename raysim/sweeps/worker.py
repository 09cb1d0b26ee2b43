"""Runs one cell of a sweep in the calling process, as each of the sweep's workers does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysim.common.defects import report_defect
from raysim.common.errors import RaysimError
from raysim.common.results import ClientRow, RunCard, Status
from raysim.engine.stop import Stop
from raysim.runs.run import Run, run
from raysim.scenario.parse import ParsedScenario


@dataclass(frozen=True)
class Task:
    """A worker's task, as plain data that can be sent to another process."""

    scenario: ParsedScenario
    resumed: Path | None = None  # the run folder to resume; None: a new run
    until: int | None = None  # the round after which the run is interrupted; None: after its last


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell."""

    folder: Path | None  # the run folder, if it was created
    error: str = ""  # empty: the cell has all its rounds, or was asked to stop
    died: bool = False  # whether the worker process died


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
    """
    rounds = Rounds(report)
    stop.after = task.until
    try:
        if task.resumed is not None:
            sets = [f"backend={task.scenario.backend}"]  # the run may have begun with another backend
            Run(task.resumed).resume(sets, quiet=True, trackers=[rounds], stop=stop)
        else:
            run(task.scenario, quiet=True, trackers=[rounds], stop=stop)
    except KeyboardInterrupt:
        return Outcome(rounds.folder)  # the run folder records the interruption
    except RaysimError as error:
        return Outcome(rounds.folder, str(error))
    except Exception as error:
        return Outcome(rounds.folder, report_defect(error, ["sweep"]))
    return Outcome(rounds.folder)
