"""The cells of a sweep as lists and as JSON: their states (`--status`), and their estimated time (`--dry-run`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Literal

from raysim.common.errors import RaysimError
from raysim.common.results import Output
from raysim.common.text import one_line
from raysim.comparison.sweep_card import TunedVariant
from raysim.report.load import read_summary
from raysim.report.units import human_seconds, plural
from raysim.runs.preview import preview
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import Sweep, placed
from raysim.sweeps.choice import Tuning, TuningProgress
from raysim.sweeps.state import CellState, State, in_words, states_of, tally

PHASES = ("train", "aggregate", "evaluate")


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
    """Return a row per cell."""
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
    """Print a line per tuned variant with its choice or its progress, and one per cell; then the counts."""
    for one in status.tuning:
        text = one_line(one.variant.sentence)
        if one.state == "tuning":
            trials = plural(one.planned_trials, "trial")
            text = f"{one.variant.label}: {trials}, {one.variant.rounds} of {one.planned_rounds} rounds"
        print(f"{one.state:<11} {text}")
    print_cells(status.cells)


def print_cells(cells: Sequence[CellStatus], costs: Sequence[float | None] | None = None) -> None:
    """Print a line per cell with its state, its rounds and, if known, why it is not done; then the number per state.

    costs: also print each cell's seconds.
    """
    title = "" if costs is None else f" {'time':>12}"
    print(f"{'state':<11} {'rounds':>9}{title}  cell")
    for place, one in enumerate(cells):
        cost = "" if costs is None else f" {_shown_s(costs[place]):>12}"
        reason = f"  {one_line(one.reason)}" if one.reason else ""
        print(f"{one.state:<11} {f'{one.rounds}/{one.planned_rounds}':>9}{cost}  {one.name}{reason}")
    print(in_words(tally(one.state for one in cells)))


def estimate(sweep: Sweep, states: Sequence[CellState]) -> tuple[list[float | None], dict[str, RaysimError]]:
    """Return each cell's seconds in one process with all its rounds; None: unknown, because of one of the errors.

    Cells that differ only in the seed take equally long: as long as those of them that are done, else as estimated from
    a few training steps. The errors are by the cell's name, one per variant.
    """
    measured: dict[str, list[float]] = {}
    for one in states:
        if one.state == "done" and one.folder is not None:
            phases = read_summary(one.folder).get("seconds", {})
            measured.setdefault(one.cell.variant, []).append(sum(phases.get(phase, 0.0) for phase in PHASES))
    known: dict[str, float | None] = {name: mean(seconds) for name, seconds in measured.items()}
    errors: dict[str, RaysimError] = {}
    for one in states:
        if one.cell.variant not in known:
            known[one.cell.variant] = None
            try:
                scenario = placed(one.cell, sweep, ["backend=in_process"])
                known[one.cell.variant] = preview(Scenario.of(scenario)).total_s
            except RaysimError as error:
                errors[one.cell.name] = error
    return [known[one.cell.variant] for one in states], errors


def print_plan(sweep: Sweep, names: Collection[str], parallel: int, retry_failed: bool) -> dict[str, RaysimError]:
    """Print the cells with these names and their estimated seconds, and then the time left.

    Returns the errors of cells whose time is unknown; see `estimate`. retry_failed: whether failed cells run again.
    """
    trials_s, errors = 0.0, dict[str, RaysimError]()
    if sweep.tuning is not None:
        tuning = sweep.tuning.of_cells(names)
        progress = tuning.progress()
        trials_s, errors = _print_trials(tuning, progress)
        sweep = sweep.tuning.resolved(sweep, progress)
    states = [one for one in states_of(sweep) if one.cell.name in names]
    costs, others = estimate(sweep, states)
    print_cells(cell_rows(states), costs)
    ended = ("done",) if retry_failed else ("done", "failed")
    left = [(one, cost) for one, cost in zip(states, costs, strict=True) if one.state not in ended]
    if trials_s or left:
        rest_s = [(seconds or 0.0) * (1 - one.rounds / one.cell.rounds) for one, seconds in left]
        total_s = max(sum(rest_s, trials_s) / parallel, max(rest_s, default=0.0))
        unknown = sum(seconds is None for _, seconds in left)
        besides = f", and {plural(unknown, 'cell')} of unknown length" if unknown else ""
        run = f"{plural(parallel, 'cell')} {'runs' if parallel == 1 else 'run'} at a time"
        print(
            f"estimated time, if {run} on an idle machine: about {human_seconds(total_s)}. Not included: the start of "
            f"each cell{besides}."
        )
    return {**errors, **others}


def _print_trials(tuning: Tuning, progress: Sequence[TuningProgress]) -> tuple[float, dict[str, RaysimError]]:
    """Print a line per tuned variant with the rounds and seconds of its trials; return the seconds that are left.

    A trial's time is that of the first one: the values of the others may change it.
    """
    cells = [tuning.cells(one.candidate, 0, one.trials[0].values, one.candidate.rounds)[0] for one in progress]
    sweep = replace(tuning.sweep, cells=tuple(cells))
    costs, errors = estimate(sweep, states_of(sweep))
    left_s = 0.0
    for one, cost in zip(progress, costs, strict=True):
        round_s = None if cost is None else cost / one.candidate.rounds
        left_s += (round_s or 0.0) * max(one.planned_rounds - one.rounds, 0) if one.open else 0.0
        shown = _shown_s(None if round_s is None else round_s * one.planned_rounds)
        rounds = f"{plural(one.candidate.trials, 'trial')}, {one.rounds} of {one.planned_rounds:,} rounds"
        print(f"{one.state:<11} {shown:>22}  {one.candidate.name}: {rounds}")
    return left_s, errors


def _shown_s(seconds: float | None) -> str:
    return "?" if seconds is None else human_seconds(seconds)
