"""A comparison in the terminal and as files: Markdown, LaTeX and CSV; and the trials of a tuning in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from raysim.common.files import write_bytes
from raysim.comparison.compare import Comparison
from raysim.comparison.latex import Bold, latex
from raysim.comparison.sweep_card import TrialsCard
from raysim.comparison.tables import (
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


def print_table(comparison: Comparison, file: TextIO | None = None, shown: Sequence[Column] | None = None) -> None:
    """Print the table for a terminal, followed by the notes on fairness. shown: its columns; default: a short table."""
    console = Console(file=file)
    shown = shown or short_columns(comparison)
    _print_rows(console, rows_of(comparison, shown), legend(comparison, shown))
    if over := task_rows(comparison):
        console.print()
        _print_rows(console, over, tasks_legend(comparison.main))
    for note in comparison.notes:
        _print(console, f"note: {note}")


def print_trials(trials: TrialsCard) -> None:
    """Print the table of a tuning's trials for a terminal."""
    _print_rows(Console(), trials.rows, trials.legend)


def _print_rows(console: Console, rows: Sequence[Sequence[str]], meaning: str) -> None:
    """Print a table. Columns that do not fit into the width of a terminal are printed below, with the names again."""
    import pandas as pd

    (first, *head), *body = rows
    frame = pd.DataFrame([row[1:] for row in body], [row[0] for row in body], pd.Index(head, name=first))
    with pd.option_context("display.unicode.east_asian_width", True):
        _print(console, frame.to_string(line_width=console.width if console.is_terminal else None))
    console.print()
    _print(console, meaning, style="dim")


def _print(console: Console, text: str, style: str = "") -> None:
    """Print text; a pipe, which has no width, gets whole lines."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def markdown(comparison: Comparison, shown: Sequence[Column] | None = None) -> str:
    """Return the table of these columns, by default of all measures, in Markdown, with the notes below."""

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
