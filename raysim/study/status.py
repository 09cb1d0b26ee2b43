"""The cells of a sweep as lists and as JSON, with their states (`--status`) and the remaining time (`--dry-run`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from raysim.common.errors import RaysimError
from raysim.common.text import one_line
from raysim.results.units import human_seconds, plural
from raysim.runs.preview import preview
from raysim.scenario.scenario import Scenario
from raysim.study.cells import Cell, CellState, Sweep, counts, placed, states_of, tally
from raysim.study.choice import TuningProgress


def status_of(sweep: Sweep, names: Collection[str]) -> tuple[list[CellState], list[TuningProgress]]:
    """Return the states of the cells with these names, and the progress of their tuning."""
    progress: list[TuningProgress] = []
    if sweep.tuning is not None:
        progress = sweep.tuning.of_cells(names).progress()
        sweep = sweep.tuning.resolved(sweep, progress)
    return [one for one in states_of(sweep) if one.cell.name in names], progress


def status_json(sweep: Sweep, states: Sequence[CellState], progress: Sequence[TuningProgress]) -> dict[str, Any]:
    """Return the output of `--status --json`: the sweep's name and folder, its cells, and its tuned variants."""
    cells = [
        {
            "name": one.cell.name,
            "variant": one.cell.variant,
            "method": one.cell.scenario.method,
            "seed": one.cell.scenario.seed,
            "state": one.state,
            "rounds": one.rounds,
            "planned_rounds": one.cell.rounds,
            "reason": one.reason,
            "folder": None if one.folder is None else one.folder.absolute(),
        }
        for one in states
    ]
    tuning = [
        {
            "state": one.state,
            "variant": one.tuned,
            "planned_trials": one.candidate.trials,
            "planned_rounds": one.planned_rounds,
        }
        for one in progress
    ]
    number = tally(one.state for one in states)
    return {"name": sweep.name, "folder": sweep.output.absolute(), "counts": number, "cells": cells, "tuning": tuning}


def print_status(states: Sequence[CellState], progress: Sequence[TuningProgress] = ()) -> None:
    """Print one line per tuned variant, with its choice or progress, and one per cell; then the number per state."""
    for tuned in progress:
        text = one_line(tuned.tuned.sentence)
        if tuned.state == "tuning":
            trials = plural(tuned.candidate.trials, "trial")
            text = f"{tuned.candidate.name}: {trials}, {tuned.rounds} of {tuned.planned_rounds} rounds"
        print(f"{tuned.state:<11} {text}")
    print(f"{'state':<11} {'rounds':>9}  cell")
    for one in states:
        reason = f"  {one_line(one.reason)}" if one.reason else ""
        print(f"{one.state:<11} {f'{one.rounds}/{one.cell.rounds}':>9}  {one.cell.name}{reason}")
    print(counts(states))


def print_plan(sweep: Sweep, names: Collection[str], parallel: int, retry_failed: bool) -> dict[str, RaysimError]:
    """Print the status of the cells with these names, and the estimated remaining time.

    A trial's time is that of the method's first one: the values of the others may change it. Returns the error of each
    cell whose time is unknown. retry_failed: whether failed cells run again.
    """
    states, progress = status_of(sweep, names)
    print_status(states, progress)
    left: list[tuple[Cell, Sweep, int]] = []  # (a cell, its sweep, remaining rounds of all cells of this kind)
    for one in progress:
        cell, *_ = one.tuning.cells(one.candidate, 0, one.trials[0].values, one.candidate.rounds)
        left.append((cell, one.tuning.sweep, one.planned_rounds - one.rounds if one.open else 0))
    ended = ("done",) if retry_failed else ("done", "failed")
    rest = [(one.cell, sweep, one.cell.rounds - one.rounds) for one in states if one.state not in ended]
    seconds, errors = estimate([*left, *rest])
    total_s = max(sum(seconds) / parallel, max(seconds[len(left) :], default=0.0))
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
