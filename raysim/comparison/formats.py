"""A comparison in the terminal and as files: Markdown, LaTeX and CSV; and the trials of a tuning in the terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from raysim.common.files import write_bytes
from raysim.comparison.compare import Comparison
from raysim.comparison.latex import Bold, latex
from raysim.comparison.sweep_card import TrialsCard
from raysim.comparison.tables import (
    SUFFIXES,
    Column,
    all_columns,
    legend,
    rows_of,
    short_columns,
    task_rows,
    tasks_legend,
)

if TYPE_CHECKING:
    import pandas as pd

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


def markdown(comparison: Comparison, shown: Sequence[Column] | None = None) -> str:
    """The table of these columns, by default of all measures, in Markdown, with the notes below."""

    def table(rows: list[list[str]]) -> list[str]:
        head, *body = ([text.replace("|", "\\|") for text in row] for row in rows)
        return [f"| {' | '.join(line)} |" for line in (head, ["---", *["---:"] * (len(head) - 1)], *body)]

    shown = all_columns(comparison) if shown is None else shown
    lines = [*table(rows_of(comparison, shown)), "", legend(comparison, shown), ""]
    if over := task_rows(comparison):
        lines += [*table(over), "", tasks_legend(comparison.main), ""]
    return "\n".join([*lines, *(f"- {note}" for note in comparison.notes), ""])


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV. Raises `OSError`."""
    write_bytes(path, frame.to_csv(index=False).encode())


def write_tables(
    comparison: Comparison,
    folder: Path,
    shown: Sequence[Column] | None = None,
    siunitx: bool = False,
    heads: Mapping[str, str] | None = None,
    bold: Bold = "significant",
) -> list[Path]:
    """Write comparison.md, .tex and .csv, and runs.csv, into a folder, created if missing. Raises `OSError`.

    shown: the columns in LaTeX and Markdown; default: see `latex` and `markdown`; CSV has all measures. siunitx,
    heads, bold: see `latex`.
    """
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "comparison.md": markdown(comparison, shown),
        "comparison.tex": latex(comparison, shown, siunitx, heads or {}, bold),
    }
    for name, content in texts.items():
        write_bytes(folder / name, content.encode())
    frames = {"comparison.csv": comparison.frame, "runs.csv": pd.DataFrame(comparison.runs)}
    for name, frame in frames.items():
        write_csv(frame, folder / name)
    return [folder / name for name in (*texts, *frames)]
