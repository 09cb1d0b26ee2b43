"""The time of a sweep's cells, for a dry run: measured in finished cells, else estimated from a few training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from raysim.common.errors import RaysimError, ScenarioError, UnavailableError
from raysim.report.load import read_summary
from raysim.runs.preview import preview
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import Cell, Sweep, placed
from raysim.sweeps.choice import Tuning, TuningProgress
from raysim.sweeps.state import CellState, states_of

PHASES = ("train", "aggregate", "evaluate")


@dataclass
class Estimator:
    """Estimates the seconds of a sweep's cells in one process. Cells that differ only in the seed take equally long."""

    sweep: Sweep
    notes: list[str] = field(default_factory=list)  # one sentence per variant whose time could not be estimated
    refused: dict[str, str] = field(default_factory=dict)  # a cell that can never run, one per variant -> the reason

    def of(self, states: Sequence[CellState]) -> list[float | None]:
        """Return the seconds of each cell with all its rounds; None: unknown."""
        finished: dict[str, list[float]] = {}
        for one in states:
            if one.state == "done" and one.folder is not None:
                phases = read_summary(one.folder).get("seconds", {})
                finished.setdefault(one.cell.variant, []).append(sum(phases.get(phase, 0.0) for phase in PHASES))
        known: dict[str, float | None] = {name: mean(seconds) for name, seconds in finished.items()}
        for one in states:
            if one.cell.variant not in known:
                known[one.cell.variant] = self._estimated(one.cell)
        return [known[one.cell.variant] for one in states]

    def _estimated(self, cell: Cell) -> float | None:
        try:
            return preview(Scenario.of(placed(cell, self.sweep, ["backend=in_process"]))).total_s
        except RaysimError as error:
            if isinstance(error, ScenarioError) and not isinstance(error, UnavailableError):
                self.refused[cell.name] = str(error)
            self.notes.append(f"{cell.name}: {error}")
            return None


def seconds_of_trials(tuning: Tuning, progress: Sequence[TuningProgress]) -> tuple[list[float | None], list[str]]:
    """Return the seconds of a cell of each candidate with all its rounds, and one sentence per time that is not known.

    It is that of the first trial: the values of the others may change it.
    """
    cells = [tuning.cells(one.candidate, 0, one.trials[0].values, one.candidate.rounds)[0] for one in progress]
    estimator = Estimator(replace(tuning.sweep, cells=tuple(cells)))
    return estimator.of(states_of(estimator.sweep)), estimator.notes
