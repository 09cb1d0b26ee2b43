"""Tables of a comparison: in the terminal, in Markdown, in LaTeX (booktabs) and in CSV."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from raysim.common import names
from raysim.common.files import replace
from raysim.comparison.compare import Comparison
from raysim.comparison.measures import ACCURACIES, is_cost_to_target
from raysim.comparison.published import Published
from raysim.comparison.statistics import Estimate
from raysim.report.units import human_count

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "last", "last_current", "at_best_val", "best_participants", "worst_decile", "total_mib", "total_gflop", "virtual_s",
    "dropped",
)  # fmt: skip
"""Measures of the terminal's table, besides rounds and virtual seconds to a target; files have all measures."""

TITLES = {
    "last": "last", "at_best_val": "at best val.", "best": "best", "best_participants": "best part.",
    "last_current": "last current", "best_current": "best current", "best_global": "best global",
    "last_global": "last global", "worst_decile": "worst 10%", "std": "std clients",
    "min": "min", "jain": "Jain", "macro_f1": "macro F1",
    "up_mib": "MiB up", "down_mib": "MiB down", "both_mib": "MiB each", "total_mib": "MiB", "gflop": "GFLOP each",
    "total_gflop": "GFLOP", "virtual_s": "virtual s", "dropped": "dropped",
}  # fmt: skip


SIGNIFICANT = 0.05
"""Corrected p-values below this level get a mark."""


def title(measure: str) -> str:
    """A column's title."""
    if measure in TITLES:
        return TITLES[measure]
    what, target = measure.split("_to_")
    words = {"rounds": "rounds", "mib": "MiB", "up_mib": "MiB up", "gflop": "GFLOP", "virtual_s": "virtual s"}
    return f"{words[what]} to {100 * float(target):g}%"


def cell(measure: str, estimate: Estimate | None, sign: bool = False) -> str:
    """Format a mean, with ± half of its interval if it has one; accuracies in per cent; "-" if nothing was measured."""
    if estimate is None:
        return "-"
    plus = "+" if sign else ""
    if measure in ACCURACIES:
        text = f"{100 * estimate.mean:{plus}.2f}"
        return text if estimate.half_width is None else f"{text} ± {100 * estimate.half_width:.2f}"
    text = _number(estimate.mean, plus)
    return text if not estimate.half_width else f"{text} ± {_number(estimate.half_width)}"


def _number(value: float, plus: str = "") -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{value:{plus}.0f}"
    return f"{value:{plus}.4g}" if abs(value) < 1e4 else f"{'+' if plus and value > 0 else ''}{human_count(value)}"


def variant_rows(comparison: Comparison, measures: Sequence[str], differences: Collection[str]) -> list[list[str]]:
    """The table of variants: a title row, then a row per variant.

    differences: the measures that are followed by the paired difference to the baseline, if there is a baseline. If
    only n of a variant's N runs have a measure, or only n share seed and partition with the baseline, the cell says
    "(n of N)". A published value has its own column; in brackets, the measured mean minus that value.
    """
    if comparison.baseline is None:
        differences = ()
    tested = [measure for measure in measures if measure in differences and comparison.p_values[measure]]
    head = ["variant", "n"]
    papers = {variant.name: comparison.published(variant.name) for variant in comparison.variants}
    printed = {measure for of_variant in papers.values() for measure in of_variant}
    unmeasured = list(
        dict.fromkeys(one.metric for variant in comparison.variants for one in variant.published if not one.measure)
    )
    for measure in measures:
        head += [title(measure), *(["published"] if measure in printed else [])]
        head += ["vs baseline"] if measure in differences else []
        head += ["p (Holm)"] if measure in tested else []
    table = [head + [f"{metric}, published" for metric in unmeasured]]
    for variant in comparison.variants:
        count = len(comparison.pairs(variant.name))
        row = [variant.name, str(count)]
        for measure in measures:
            estimate = comparison.estimate(variant.name, measure)
            if is_cost_to_target(measure):
                row.append(_cost(comparison, variant.name, measure, estimate))
            else:
                some = f" ({estimate.n} of {count})" if estimate is not None and estimate.n < count else ""
                row.append(cell(measure, estimate) + some)
            if measure in printed:
                row.append(_published(measure, estimate, papers[variant.name].get(measure)))
            if measure in differences:
                less = comparison.difference(variant.name, measure)
                some = f" ({less.n} of {count})" if less is not None and less.n < count else ""
                row.append(cell(measure, less, sign=True) + some)
            if measure in tested:
                row.append(_p(comparison.p_values[measure].get(variant.name)))
        texts = {one.metric: one.text for one in variant.published}
        table.append(row + [texts.get(metric, "-") for metric in unmeasured])
    return table


def _cost(comparison: Comparison, variant: str, measure: str, estimate: Estimate | None) -> str:
    """The number of runs that reach the target and, if all do, their mean cost."""
    if measure.startswith("virtual_s_") and "virtual_s" not in comparison.measured[variant]:
        return "-"
    reached = comparison.reached(variant, measure)
    text = f"{reached.runs} of {reached.of}"
    return text if estimate is None else f"{text}: {cell(measure, estimate)}"


def _p(value: float | None) -> str:
    """Format a p-value, with a mark if it is significant."""
    if value is None:
        return "-"
    text = "<0.001" if value < 0.001 else f"{value:.3f}"
    return f"{text} *" if value < SIGNIFICANT else text


def task_rows(comparison: Comparison) -> list[list[str]]:
    """The table of methods over all tasks: a title row, then one per method; empty unless there are several tasks."""
    frame = comparison.over_tasks()
    if frame is None:
        return []
    improves = "probability_of_improvement"
    head = ["method", "tasks", "IQM", *([f"P(better than {comparison.baseline})"] if improves in frame else [])]
    table = [head]
    for row in frame.to_dict("records"):
        better = row.get(improves)
        shown = [row["method"], str(row["tasks"]), f"{100 * row['iqm']:.2f}"]
        table.append([*shown, *(["-" if better != better else f"{better:.2f}"] if improves in row else [])])
    return table


TASKS = "IQM is the interquartile mean of the last accuracy over all seeds and tasks (data and clients), in %."


def _published(measure: str, estimate: Estimate | None, paper: Published | None) -> str:
    """Format a paper's value and, in brackets, the measured mean minus that value."""
    if paper is None or paper.value is None:
        return "-"
    text = cell(measure, Estimate(1, paper.value))
    return (
        text if estimate is None else f"{text} ({cell(measure, Estimate(1, estimate.mean - paper.value), sign=True)})"
    )


def short(comparison: Comparison) -> list[str]:
    """The measures of the short table."""
    printed = {measure for variant in comparison.variants for measure in comparison.published(variant.name)}
    costs = ("rounds_to_", "virtual_s_to_")
    return [m for m in comparison.measures if m in COLUMNS or m in printed or m.startswith(costs)]


def print_table(comparison: Comparison, file: TextIO | None = None) -> None:
    """Print the table for a terminal, followed by the notes on fairness."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file)
    if not console.is_terminal:
        console.width = 10_000  # a pipe has no width

    def show(rows: list[list[str]], meaning: str) -> None:
        head, *body = rows
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, name in enumerate(head):
            table.add_column(Text(names.plain(name)), justify="left" if i == 0 else "right", no_wrap=i > 0)
        for row in body:
            table.add_row(*(Text(names.plain(text)) for text in row))
        console.print(table)
        console.print()
        console.print(Text(names.plain(meaning), style="dim"))

    show(variant_rows(comparison, short(comparison), {"last"}), f"Accuracies in %. {legend(comparison)}")
    if over := task_rows(comparison):
        console.print()
        show(over, TASKS)
    for note in comparison.notes:
        console.print(Text(f"note: {names.plain(note)}"))


def legend(comparison: Comparison) -> str:
    """The explanation of ±, differences, their p-values and costs to a target."""
    estimates = (comparison.estimate(variant.name, "last") for variant in comparison.variants)
    text = ""
    if any(one is not None and one.half_width is not None for one in estimates):
        text = "± is half the 95% confidence interval over seeds (Student's t)."
    if comparison.baseline is not None:
        text += f" vs baseline: paired over seeds, less {comparison.baseline}."
        if any(comparison.p_values[measure] for measure in comparison.measures):
            text += (
                " p (Holm): of the paired t-test, corrected for all differences in its column; only those with * are "
                "significant (p < 0.05)."
            )
    if any(map(is_cost_to_target, comparison.measures)):
        text += " To a target: how many runs reach it, and the mean cost only where all do."
    whose = {"participants": "a round's participants", "all_current": "all clients with the server's current message"}
    if comparison.targets and comparison.targets_on in whose:
        text += f" A target counts as reached when the mean test accuracy of {whose[comparison.targets_on]} reaches it."
    if sources := dict.fromkeys(one.source for variant in comparison.variants for one in variant.published):
        text += f" published: {'; '.join(sources)}, and in brackets the measured mean less it."
    return text.lstrip()


def markdown(comparison: Comparison) -> str:
    """All measures as a Markdown table, with the notes below."""

    def table(rows: list[list[str]]) -> list[str]:
        head, *body = ([names.markdown(text) for text in row] for row in rows)
        return [f"| {' | '.join(line)} |" for line in (head, ["---", *["---:"] * (len(head) - 1)], *body)]

    lines = [
        *table(variant_rows(comparison, comparison.measures, ACCURACIES)),
        "",
        names.markdown(legend(comparison)),
        "",
    ]
    if over := task_rows(comparison):
        lines += [*table(over), "", TASKS, ""]
    return "\n".join([*lines, *(f"- {names.markdown(note)}" for note in comparison.notes), ""])


def latex(comparison: Comparison) -> str:
    r"""The terminal's table in LaTeX; it needs `\usepackage{booktabs}`."""

    def escaped(text: str) -> str:
        return re.sub(r"^([+-])(?=\d)", r"$\1$", names.latex(text))

    head, *body = ([escaped(text) for text in row] for row in variant_rows(comparison, short(comparison), {"last"}))
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
    ]
    lines += [" & ".join(row) + r" \\" for row in body]
    notes = (f"% {names.latex(note)}" for note in comparison.notes)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes, ""])


def _csv(frame: pd.DataFrame) -> str:
    """Convert a table to CSV, escaping text that a spreadsheet would read as a formula."""
    cells = frame.map(lambda cell: names.spreadsheet(cell) if isinstance(cell, str) else cell)
    return str(cells.rename(columns=names.spreadsheet).to_csv(index=False))


def _write(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())


def write_tables(comparison: Comparison, folder: Path) -> list[Path]:
    """Write comparison.md, .tex and .csv, and runs.csv, into a folder, created if missing. Raises `OSError`."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "comparison.md": markdown(comparison),
        "comparison.tex": latex(comparison),
        "comparison.csv": _csv(comparison.frame),
        "runs.csv": _csv(pd.DataFrame(comparison.runs)),
    }
    for name, text in texts.items():
        replace(folder / name, partial(_write, text))
    return [folder / name for name in texts]
