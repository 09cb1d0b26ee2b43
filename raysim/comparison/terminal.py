"""Tables of a comparison and of a tuning's trials, in the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from raysim.comparison.compare import Comparison
from raysim.comparison.sweep_card import TrialsCard
from raysim.comparison.tables import SUFFIXES, Column, legend, rows_of, short_columns, task_rows, tasks_legend

GAP = 2
"""Spaces between two columns."""


def print_table(comparison: Comparison, file: TextIO | None = None, shown: Sequence[Column] | None = None) -> None:
    """Print the table for a terminal, followed by the notes on fairness. shown: its columns; default: a short table."""
    console = _console(file)
    shown = shown or short_columns(comparison)
    # A difference stays beside its mean, which has the unit.
    joined = [
        i
        for i, (one, next_) in enumerate(pairwise(shown), 2)
        if next_.kind in SUFFIXES and one.measure == next_.measure
    ]
    _print_rows(console, rows_of(comparison, shown), legend(comparison, shown), joined)
    if over := task_rows(comparison):
        console.print()
        _print_rows(console, over, tasks_legend(comparison.main))
    for note in comparison.notes:
        console.print(Text(f"note: {note}"))


def print_trials(trials: TrialsCard) -> None:
    """Print the table of a tuning's trials for a terminal."""
    _print_rows(_console(), trials.rows, trials.legend)


def _console(file: TextIO | None = None) -> Console:
    console = Console(file=file)
    if not console.is_terminal:
        console.width = 10_000  # a pipe has no width
    return console


def _print_rows(console: Console, rows: list[list[str]], meaning: str, joined: Collection[int] = ()) -> None:
    plain = [[*row] for row in rows]
    for block in blocks(plain, console.width, joined):
        head, *body = ([row[0], *(row[i] for i in block)] for row in plain)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for i, name in enumerate(head):
            table.add_column(Text(name), justify="right" if i else "left", no_wrap=i > 0)
        for row in body:
            table.add_row(*map(Text, row))
        console.print(table)
        console.print()
    console.print(Text(meaning, style="dim"))


def blocks(rows: Sequence[Sequence[str]], width: int, joined: Collection[int] = ()) -> list[list[int]]:
    """Group the columns of a table that is too wide: each group is printed below the previous one.

    Each printed table begins with column 0, so a group has the numbers of the columns beside it. If column 0 is
    wider than a third of `width`, its names are wrapped. joined: columns that stay beside the column before them, as
    far as the width allows.
    """
    first, *others = (max(map(cell_len, column)) for column in zip(*rows, strict=True))
    room = width - min(first, width // 3)
    units: list[list[int]] = []
    for i in range(1, len(others) + 1):
        units = [*units[:-1], [*units[-1], i]] if i in joined else [*units, [i]]
    groups: list[list[int]] = [[]]
    used = 0
    for unit in units:
        needed = sum(GAP + others[i - 1] for i in unit)
        for i in unit:
            size = GAP + others[i - 1]
            if groups[-1] and used + (needed if i == unit[0] else size) > room:
                groups.append([])
                used = 0
            groups[-1].append(i)
            used += size
    return groups
