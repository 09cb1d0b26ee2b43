"""A comparison in the terminal and as files: Markdown, LaTeX and CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from raysim.common.files import write_bytes
from raysim.comparison.compare import Comparison
from raysim.comparison.tables import Column, Table, all_columns, tasks_table, variants_table

if TYPE_CHECKING:
    import pandas as pd

BOLD = (
    "Bold: the best mean of a column and task, if it is significantly better than every other (p < 0.05 in paired "
    "t-tests over seeds, with Holm's correction for all these tests in the column)."
)


def print_comparison(comparison: Comparison, file: TextIO | None = None, shown: Sequence[Column] | None = None) -> None:
    """Print the table for a terminal, followed by the notes on fairness. shown: its columns; default: a short table."""
    console = Console(file=file)
    print_table(variants_table(comparison, shown), console)
    if tasks := tasks_table(comparison):
        console.print()
        print_table(tasks, console)
    for note in comparison.notes:
        _print(console, f"note: {note}")


def print_table(table: Table, console: Console) -> None:
    """Print a table. Columns that do not fit into the width of a terminal are printed below, with the names again."""
    import pandas as pd

    (first, *head), *body = table.rows
    frame = pd.DataFrame([row[1:] for row in body], [row[0] for row in body], pd.Index(head, name=first))
    with pd.option_context("display.unicode.east_asian_width", True):
        _print(console, frame.to_string(line_width=console.width if console.is_terminal else None))
    console.print()
    _print(console, table.legend, style="dim")


def _print(console: Console, text: str, style: str = "") -> None:
    """Print text; a pipe, which has no width, gets whole lines."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def markdown(comparison: Comparison, shown: Sequence[Column] | None = None) -> str:
    """Return the table of these columns, by default of all measures, in Markdown, with the notes below."""
    lines = []
    for table in (variants_table(comparison, all_columns(comparison) if shown is None else shown),
                  tasks_table(comparison)):  # fmt: skip
        if table is not None:
            head, *body = ([text.replace("|", "\\|") for text in row] for row in table.rows)
            rule = ["---", *["---:"] * (len(head) - 1)]
            lines += [*(f"| {' | '.join(row)} |" for row in (head, rule, *body)), "", table.legend, ""]
    return "\n".join([*lines, *(f"- {note}" for note in comparison.notes), ""])


def latex(comparison: Comparison, shown: Sequence[Column] | None = None) -> str:
    r"""The table of these columns, by default the terminal's, in LaTeX; it needs `\usepackage{booktabs}`."""
    import pandas as pd

    table = variants_table(comparison, shown)
    head, *body = table.rows
    begin, end = "\x02", "\x03"  # pandas escapes text, so the commands replace these marks afterwards
    marked = [
        [f"{begin}{text}{end}" if (i, j) in table.best else text for j, text in enumerate(row)]
        for i, row in enumerate(body)
    ]
    frame = pd.DataFrame(marked, columns=head)
    text = frame.to_latex(index=False, escape=True, column_format="l" + "r" * (len(head) - 1))
    text = text.replace(begin, r"\textbf{").replace(end, "}").replace("±", r"$\pm$")
    text = re.sub(r"(?<=[ ({])([+-])(?=\d)", r"$\1$", text)  # a sign is no hyphen
    comments = [table.legend, *([BOLD] if table.best else []), *comparison.notes]
    return "\n".join([r"% \usepackage{booktabs}", *(f"% {comment}" for comment in comments), text])


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV. Raises `OSError`."""
    write_bytes(path, frame.to_csv(index=False).encode())


def write_tables(comparison: Comparison, folder: Path, shown: Sequence[Column] | None = None) -> list[Path]:
    """Write comparison.md, .tex and .csv, and runs.csv, into a folder, created if missing. Raises `OSError`.

    shown: the columns in LaTeX and Markdown; default: see `latex` and `markdown`; CSV has all measures.
    """
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    texts = {"comparison.md": markdown(comparison, shown), "comparison.tex": latex(comparison, shown)}
    for name, content in texts.items():
        write_bytes(folder / name, content.encode())
    frames = {"comparison.csv": comparison.frame, "runs.csv": pd.DataFrame(comparison.runs)}
    for name, frame in frames.items():
        write_csv(frame, folder / name)
    return [folder / name for name in (*texts, *frames)]
