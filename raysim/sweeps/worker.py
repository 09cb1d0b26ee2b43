"""One cell, run by the process that calls it: what every worker of a sweep does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysim.common.errors import RaysimError, RunError
from raysim.common.results import ClientRow, RunCard, Status
from raysim.engine.stop import Stop
from raysim.runs.run import Run, run
from raysim.scenario.parse import ParsedScenario


@dataclass(frozen=True)
class Task:
    """What a worker gets: plain data."""

    scenario: ParsedScenario
    resumed: Path | None = None  # the folder of the run that it resumes


@dataclass(frozen=True)
class Outcome:
    """How a cell ended."""

    folder: Path | None  # of the run, if there is one
    error: str = ""  # empty: it has all its rounds, or was asked to end
    died: bool = False  # with its worker


@dataclass
class Rounds:
    """A tracker that reports which round is done, and nothing else."""

    report: Callable[[int], None]
    folder: Path | None = None

    def open(self, card: RunCard) -> None:
        """Note the folder of the run."""
        self.folder = card.folder

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Report round `t`."""
        self.report(t)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Nothing to end."""


def run_cell(task: Task, stop: Stop, report: Callable[[int], None]) -> Outcome:
    """Run or resume a cell. An error is part of the outcome: it ends this cell and no other.

    report: called with every round that is done. stop: ends the cell after its round once `requested`.
    """
    rounds = Rounds(report)
    try:
        if task.resumed is not None:
            sets = [f"backend={task.scenario.backend}"]  # it may have begun elsewhere
            Run(task.resumed).resume(sets, quiet=True, trackers=[rounds], stop=stop)
        else:
            run(task.scenario, quiet=True, trackers=[rounds], stop=stop)
    except KeyboardInterrupt:
        return Outcome(rounds.folder)  # its folder says that it was interrupted
    except RaysimError as error:
        return Outcome(rounds.folder, str(error))
    except Exception as error:
        return Outcome(rounds.folder, str(RunError(f"{type(error).__name__}: {error}")))
    return Outcome(rounds.folder)
