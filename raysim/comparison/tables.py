"""A comparison as tables: in the terminal, in Markdown, in LaTeX (booktabs) and in CSV."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TextIO

from raysim.common.files import replace
from raysim.comparison.compare import Comparison
from raysim.comparison.runs import ACCURACIES
from raysim.comparison.statistics import Estimate
from raysim.report.units import human_count

COLUMNS = ("last", "at_best_val", "best_participants", "worst_decile", "total_mib", "total_gflop")
"""The measures of the terminal's table, besides rounds to a target; files have all."""

TITLES = {
    "last": "last", "at_best_val": "at best val.", "best": "best", "best_participants": "best part.",
    "best_global": "best global", "last_global": "last global", "worst_decile": "worst 10%", "std": "std clients",
    "up_mib": "MiB up", "down_mib": "MiB down", "total_mib": "MiB", "gflop": "GFLOP each", "total_gflop": "GFLOP",
}  # fmt: skip


def title(measure: str) -> str:
    """A column's title."""
    if measure in TITLES:
        return TITLES[measure]
    what, target = measure.split("_to_")
    return f"{ {'rounds': 'rounds', 'mib': 'MiB', 'gflop': 'GFLOP'}[what] } to {100 * float(target):g}%"


def cell(measure: str, found: Estimate | None, sign: bool = False) -> str:
    """A mean, and half of its interval where there is one: accuracies in per cent; "-" where nothing was measured."""
    if found is None:
        return "-"
    plus = "+" if sign else ""
    if measure in ACCURACIES:
        text = f"{100 * found.mean:{plus}.2f}"
        return text if found.half_width is None else f"{text} ± {100 * found.half_width:.2f}"
    text = _number(found.mean, plus)
    return text if not found.half_width else f"{text} ± {_number(found.half_width)}"


def _number(value: float, plus: str = "") -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{value:{plus}.0f}"
    return f"{value:{plus}.4g}" if abs(value) < 1e4 else f"{'+' if plus and value > 0 else ''}{human_count(value)}"


def rows(comparison: Comparison, measures: Sequence[str], differences: Collection[str]) -> list[list[str]]:
    """The table: a title row, then a row per variant.

    differences: the measures after which the paired difference to the baseline stands, where there is a baseline. A
    measure that some of a variant's runs lack, as a target that they never reached, says how many have it.
    """
    if comparison.baseline is None:
        differences = ()
    head = ["variant", "n"]
    for measure in measures:
        head += [title(measure), *(["vs baseline"] if measure in differences else [])]
    table = [head]
    for variant in comparison.variants:
        count = len(comparison.pairs(variant.name))
        row = [variant.name, str(count)]
        for measure in measures:
            found = comparison.estimate(variant.name, measure)
            some = f" ({found.n} of {count})" if found is not None and found.n < count else ""
            row.append(cell(measure, found) + some)
            if measure in differences:
                row.append(cell(measure, comparison.difference(variant.name, measure), sign=True))
        table.append(row)
    return table


def print_table(comparison: Comparison, file: TextIO | None = None) -> None:
    """The table for a terminal, and below it what makes the comparison less fair than it looks."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [measure for measure in comparison.measures if measure in COLUMNS or measure.startswith("rounds_to_")]
    head, *body = rows(comparison, shown, {"last"})
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0)
    for row in body:
        table.add_row(*(Text(text) for text in row))
    console = Console(file=file)
    if not console.is_terminal:
        console.width = 240  # a pipe has no width of its own
    console.print(table)
    console.print()
    console.print(f"Accuracies in %. {legend(comparison)}", style="dim", highlight=False)
    for note in comparison.notes:
        console.print(Text(f"note: {note}"))


def legend(comparison: Comparison) -> str:
    """What ± and the differences mean."""
    text = "± is half the 95% confidence interval over seeds (Student's t)."
    if comparison.baseline is not None:
        text += f" vs baseline: paired over seeds, less {comparison.baseline}."
    return text


def markdown(comparison: Comparison) -> str:
    """All measures as a Markdown table, with the notes below."""
    head, *body = (
        [text.replace("|", "\\|") for text in row] for row in rows(comparison, comparison.measures, ACCURACIES)
    )
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    notes = [f"- {note}" for note in comparison.notes]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", legend(comparison), "", *notes, ""])


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def latex(comparison: Comparison) -> str:
    r"""All measures as a LaTeX table; it needs `\usepackage{booktabs}`."""

    def escaped(text: str) -> str:
        return re.sub(r"[\\~^±&%$#_{}]", lambda found: _LATEX[found[0]], text)

    head, *body = ([escaped(text) for text in row] for row in rows(comparison, comparison.measures, ACCURACIES))
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", " & ".join(head) + r" \\", r"\midrule"]
    lines += [" & ".join(row) + r" \\" for row in body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in comparison.notes), ""])


def _write(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())


def write_tables(comparison: Comparison, folder: Path) -> list[Path]:
    """Write comparison.md, .tex and .csv into a folder, which is made. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "comparison.md": markdown(comparison),
        "comparison.tex": latex(comparison),
        "comparison.csv": comparison.frame.to_csv(index=False),
    }
    for name, text in texts.items():
        replace(folder / name, partial(_write, text))
    return [folder / name for name in texts]
