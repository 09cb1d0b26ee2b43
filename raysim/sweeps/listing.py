"""Lists of a sweep's cells: a long list has a line per variant or method, with its number of cells in each state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from raysim.common.text import one_line
from raysim.report.units import human_bytes, human_seconds
from raysim.sweeps.estimate import Cost
from raysim.sweeps.state import ORDER, CellState

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


def print_collapsed(
    states: Sequence[CellState], costs: Sequence[Cost] | None = None, file: TextIO | None = None
) -> None:
    """Print the lines of `collapsed`, and how to see each cell."""
    for line in collapsed(states, costs):
        print(line, file=file)
    print("(a line per cell: --all)", file=file)
