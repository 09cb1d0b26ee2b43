"""The cells of a sweep as lists and as JSON, with their states (`--status`) and the remaining time (`--dry-run`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raysim.common.errors import RaysimError
from raysim.common.results import Output
from raysim.common.text import one_line
from raysim.comparison.sweep_card import TunedVariant
from raysim.report.units import human_seconds, plural
from raysim.runs.preview import preview
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import Cell, CellState, State, Sweep, in_words, placed, states_of, tally


@dataclass(frozen=True)
class TuningStatus(Output):
    """The progress of a variant's tuning."""

    state: Literal["tuned", "tuning", "failed"]
    """tuned: values are chosen; tuning: trials remain; failed: every trial failed or diverged"""
    variant: TunedVariant
    """the variant's trials, the rounds that they have done, and the chosen values"""
    planned_trials: int
    """number of trials"""
    planned_rounds: int
    """number of rounds of all trials together, if none fails or ends early"""


@dataclass(frozen=True)
class CellStatus(Output):
    """The state of a cell."""

    name: str
    """name of the cell"""
    variant: str
    """name of the cell without the seed"""
    method: str
    """name of the algorithm in tables"""
    seed: int
    """the scenario's seed"""
    state: State
    """state of the cell"""
    rounds: int
    """number of finished rounds"""
    planned_rounds: int
    """number of rounds that the cell will have"""
    reason: str
    """why the cell is not done, if known"""
    folder: Path | None
    """the run folder; null if the cell has not begun"""


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
    """one row per cell"""
    tuning: Sequence[TuningStatus]
    """one row per tuned variant"""


def status_of(sweep: Sweep, names: Collection[str]) -> SweepStatus:
    """Return the progress of the cells with these names, and of their tuning."""
    tuning: list[TuningStatus] = []
    if sweep.tuning is not None:
        progress = sweep.tuning.of_cells(names).progress()
        sweep = sweep.tuning.resolved(sweep, progress)
        tuning = [TuningStatus(one.state, one.tuned, one.candidate.trials, one.planned_rounds) for one in progress]
    states = [one for one in states_of(sweep) if one.cell.name in names]
    return SweepStatus(
        sweep.name, sweep.output.absolute(), tally(one.state for one in states), cell_rows(states), tuning
    )


def cell_rows(states: Iterable[CellState]) -> list[CellStatus]:
    """Return one row per cell."""
    return [
        CellStatus(
            one.cell.name,
            one.cell.variant,
            one.cell.scenario.method,
            one.cell.scenario.seed,
            one.state,
            one.rounds,
            one.cell.rounds,
            one.reason,
            None if one.folder is None else one.folder.absolute(),
        )
        for one in states
    ]


def print_status(status: SweepStatus) -> None:
    """Print one line per tuned variant, with its choice or progress, and one per cell; then the number per state."""
    for one in status.tuning:
        text = one_line(one.variant.sentence)
        if one.state == "tuning":
            trials = plural(one.planned_trials, "trial")
            text = f"{one.variant.label}: {trials}, {one.variant.rounds} of {one.planned_rounds} rounds"
        print(f"{one.state:<11} {text}")
    print_cells(status.cells)


def print_cells(cells: Sequence[CellStatus]) -> None:
    """Print one line per cell: state, rounds, and if known why it is not done; then the number of cells per state."""
    print(f"{'state':<11} {'rounds':>9}  cell")
    for one in cells:
        reason = f"  {one_line(one.reason)}" if one.reason else ""
        print(f"{one.state:<11} {f'{one.rounds}/{one.planned_rounds}':>9}  {one.name}{reason}")
    print(in_words(tally(one.state for one in cells)))


def print_plan(sweep: Sweep, names: Collection[str], parallel: int, retry_failed: bool) -> dict[str, RaysimError]:
    """Print the status of the cells with these names, and the estimated remaining time.

    A trial's time is that of the method's first one: the values of the others may change it. Returns the error of each
    cell whose time is unknown. retry_failed: whether failed cells run again.
    """
    print_status(status_of(sweep, names))
    left: list[tuple[Cell, Sweep, int]] = []  # (a cell, its sweep, remaining rounds of all cells of this kind)
    if sweep.tuning is not None:
        tuning = sweep.tuning.of_cells(names)
        progress = tuning.progress()
        sweep = sweep.tuning.resolved(sweep, progress)
        for one in progress:
            cell, *_ = tuning.cells(one.candidate, 0, one.trials[0].values, one.candidate.rounds)
            left.append((cell, tuning.sweep, one.planned_rounds - one.rounds if one.open else 0))
    ended = ("done",) if retry_failed else ("done", "failed")
    states = [one for one in states_of(sweep) if one.cell.name in names and one.state not in ended]
    left += [(one.cell, sweep, one.cell.rounds - one.rounds) for one in states]
    seconds, errors = estimate(left)
    total_s = max(sum(seconds) / parallel, max(seconds[len(left) - len(states) :], default=0.0))
    besides = f", and {plural(len(errors), 'variant')} of unknown length" if errors else ""
    run = f"{plural(parallel, 'cell')} {'runs' if parallel == 1 else 'run'} at a time"
    print(
        f"estimated time, if {run} on an idle machine: about {human_seconds(total_s)}. Not included: the start of "
        f"each cell{besides}."
    )
    return errors


def estimate(left: Iterable[tuple[Cell, Sweep, int]]) -> tuple[list[float], dict[str, RaysimError]]:
    """Return the estimated seconds of each cell's remaining rounds, in one process, from a few training steps.

    0: unknown, because of one of the errors. Cells that differ only in the seed take equally long. The errors are by
    the cell's name, one per variant.
    """
    round_s: dict[str, float] = {}
    errors: dict[str, RaysimError] = {}
    seconds = []
    for cell, sweep, rounds in left:
        if cell.variant not in round_s:
            round_s[cell.variant] = 0.0
            try:
                scenario = Scenario.of(placed(cell, sweep, ["backend=in_process"]))
                round_s[cell.variant] = preview(scenario).total_s / cell.scenario.rounds
            except RaysimError as error:
                errors[cell.name] = error
        seconds.append(round_s[cell.variant] * rounds)
    return seconds, errors
