"""Lists of a sweep's cells: a long list has a line per variant or method, with its number of cells in each state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from raysim.common.text import one_line
from raysim.report.units import human_bytes, human_seconds, plural
from raysim.sweeps.estimate import CELL_S, START_S, Cost
from raysim.sweeps.state import ORDER, CellState, counts

LONG = 20
"""The most cells of a list with a line for each; longer ones are collapsed."""


def groups(states: Sequence[CellState]) -> dict[str, list[int]]:
    """Name -> positions of its cells: variants, that is, the cells that differ only in their seed.

    Methods instead, if there are several and more than `LONG` variants.
    """
    by_label: dict[str, list[int]] = {}
    by_method: dict[str, list[int]] = {}
    for place, state in enumerate(states):
        by_label.setdefault(state.cell.variant, []).append(place)
        by_method.setdefault(state.cell.scenario.method, []).append(place)
    return by_method if len(by_label) > LONG and len(by_method) > 1 else by_label


def is_long(states: Sequence[CellState]) -> bool:
    """Whether a list of these cells is collapsed: it is long, and gets shorter by that."""
    return len(states) > LONG and len(groups(states)) < len(states)


def collapsed(states: Sequence[CellState], costs: Sequence[Cost] | None = None) -> list[str]:
    """A line per group: how many of its cells are in each state, and the rounds done or, with costs, the mean costs.

    Reasons why cells are not done follow in lines of their own, equal ones once.
    """
    lines = []
    for name, places in groups(states).items():
        cells = [states[place] for place in places]
        tally = Counter(one.state for one in cells)
        seeds = "seeds" if len({one.cell.variant for one in cells}) == 1 else "cells"
        others = [f"{tally[state]} {state}" for state in ORDER[1:] if tally[state]]
        text = ", ".join([f"{name}: {tally['done']} of {len(cells)} {seeds} done", *others])
        rounds, total = sum(one.rounds for one in cells), sum(one.cell.rounds for one in cells)
        if costs is not None:
            text += f"; {_mean_cost([costs[place] for place in places])} each"
        elif others:
            text += f"; {rounds} of {total} rounds"
        lines.append(one_line(text))
        reasons = Counter((one.state, one_line(one.reason)) for one in cells if one.reason)
        lines += [f"    {count} {state}: {reason}" for (state, reason), count in reasons.items()]
    return lines


def _mean_cost(costs: Sequence[Cost]) -> str:
    seconds = [cost.seconds for cost in costs if cost.seconds is not None]
    sent = [cost.sent for cost in costs if cost.sent is not None]
    shown_s = human_seconds(sum(seconds) / len(seconds)) if seconds else "?"
    return f"{shown_s}, {human_bytes(sum(sent) / len(sent)) if sent else '?'}"


def print_states(
    states: Sequence[CellState],
    file: TextIO | None = None,
    every: bool = False,
    costs: Sequence[Cost] | None = None,
) -> None:
    """Print titles, and a line per cell with its state, rounds and, if known, why it is not done; then the counts.

    every: also in a long list, which otherwise has a line per variant. costs: also print seconds and bytes.
    """
    if is_long(states) and not every:
        for line in collapsed(states, costs):
            print(line, file=file)
        print("(a line per cell: --all)", file=file)
    else:
        title = "" if costs is None else f" {'time':>12} {'sent':>9}"
        print(f"{'state':<11} {'rounds':>9}{title}  cell", file=file)
        for place, one in enumerate(states):
            rounds = f"{one.rounds}/{one.cell.rounds}"
            cost = "" if costs is None else f" {_seconds(costs[place]):>12} {_sent(costs[place]):>9}"
            reason = f"  {one_line(one.reason)}" if one.reason else ""
            print(f"{one.state:<11} {rounds:>9}{cost}  {one.cell.name}{reason}", file=file)
    print(counts(states), file=file)


def _seconds(cost: Cost) -> str:
    return "?" if cost.seconds is None else human_seconds(cost.seconds)


def _sent(cost: Cost) -> str:
    return "?" if cost.sent is None else human_bytes(cost.sent)


def print_plan(
    states: Sequence[CellState],
    costs: Sequence[Cost],
    parallel: int,
    *,
    every: bool = False,
    before_s: float = 0.0,
    starts: int = 0,
    retry_failed: bool = False,
) -> None:
    """Print the cells with their seconds and bytes; then the time left.

    before_s, starts: seconds of the rounds of trials that are left, and how often their cells still start or resume.
    retry_failed: whether failed cells run again.
    """
    print_states(states, every=every, costs=costs)
    ended = ("done",) if retry_failed else ("done", "failed")
    left = [(one, cost.seconds) for one, cost in zip(states, costs, strict=True) if one.state not in ended]
    if not starts and not left:
        return
    started = f"{starts + len(left)} cells or tuning steps" if starts else plural(len(left), "cell")
    rest_s = [(seconds or 0.0) * (1 - one.rounds / one.cell.rounds) for one, seconds in left]
    rounds_s = max(sum(rest_s, before_s) / parallel, max(rest_s, default=0.0))
    start_s = START_S + CELL_S * (starts + len(left)) / parallel
    run = f"{plural(parallel, 'cell')} {'runs' if parallel == 1 else 'run'} at a time"
    unknown = sum(seconds is None for _, seconds in left)
    besides = f" Not included: {plural(unknown, 'cell')} of unknown length." if unknown else ""
    print(
        f"estimated time, if {run} on an idle machine: about {human_seconds(rounds_s + start_s)}. This includes "
        f"{human_seconds(start_s)} to start the processes (once) and {started}.{besides}"
    )
