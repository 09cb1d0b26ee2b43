"""The progress of a sweep, for programs: `raysim sweep --status --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raysim.common.results import Output
from raysim.comparison.sweep_card import TunedVariant
from raysim.sweeps.cells import Sweep
from raysim.sweeps.choice import TuningProgress
from raysim.sweeps.state import CellState, State, tally


@dataclass(frozen=True)
class TuningStatus(Output):
    """The progress of a variant's tuning."""

    state: Literal["tuned", "tuning", "failed"]
    """tuned: values are chosen; tuning: trials are left; failed: every trial failed or diverged"""
    variant: TunedVariant
    """its trials, the rounds that they have done, and the values that are chosen"""
    planned_trials: int
    """number of trials"""
    planned_rounds: int
    """rounds of all trials, if none fails or ends early"""
    until: int | None
    """the round after which the trials are compared next, if they are compared several times"""
    counts: Mapping[State, int]
    """state -> number of cells that must end before the next comparison"""

    @classmethod
    def of(cls, progress: TuningProgress) -> TuningStatus:
        """Return the status of a candidate."""
        return cls(
            progress.state,
            progress.tuned,
            progress.candidate.trials,
            progress.planned_rounds,
            progress.until,
            tally(progress.open),
        )


@dataclass(frozen=True)
class CellStatus(Output):
    """The state of a cell."""

    name: str
    """name of the cell"""
    variant: str
    """the name without the seed"""
    method: str
    """name of the algorithm in tables"""
    seed: int
    """the scenario's seed"""
    state: State
    """its state"""
    rounds: int
    """rounds that are done"""
    planned_rounds: int
    """rounds that it is to have"""
    reason: str
    """why it is not done, if known"""
    folder: Path | None
    """the run folder; null: it has not begun"""

    @classmethod
    def of(cls, state: CellState) -> CellStatus:
        """Return the state of a cell, for programs."""
        cell, folder = state.cell, state.folder
        return cls(
            cell.name,
            cell.variant,
            cell.scenario.method,
            cell.scenario.seed,
            state.state,
            state.rounds,
            cell.rounds,
            state.reason,
            None if folder is None else folder.absolute(),
        )


@dataclass(frozen=True)
class SweepStatus(Output):
    """The progress of a sweep."""

    name: str
    """name of the sweep"""
    folder: Path
    """the folder with the cells"""
    counts: Mapping[State, int]
    """state -> number of cells"""
    cells: Sequence[CellStatus]
    """a row per cell"""
    tuning: Sequence[TuningStatus]
    """a row per variant that is tuned"""

    @classmethod
    def of(cls, sweep: Sweep, states: Sequence[CellState], tuning: Sequence[TuningStatus]) -> SweepStatus:
        """Return the progress of these cells."""
        cells = [CellStatus.of(one) for one in states]
        return cls(sweep.name, sweep.output.absolute(), tally(states), cells, tuning)
