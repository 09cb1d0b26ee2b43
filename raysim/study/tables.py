"""The tables of a comparison: their columns and cells, and the same table for the terminal, LaTeX, HTML and CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from rich.console import Console
from rich.text import Text

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.study.compare import Comparison
from raysim.study.measures import ACCURACIES, MEASURES, is_cost_to_target, title
from raysim.study.statistics import SIGNIFICANT, Estimate, Spread

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-12
"""Smaller numbers are rounding errors, and are shown as 0."""

SPREADS: Mapping[Spread, str] = {
    "interval": "± is half the 95% confidence interval over seeds (Student's t).",
    "std": "± is the standard deviation over seeds (n - 1 in the denominator).",
}
"""What ± shows -> its explanation below a table."""

Kind = Literal["n", "mean", "published", "difference", "p_holm"]


class Column(NamedTuple):
    """A column of the table of variants, after the variants' names."""

    kind: Kind
    measure: str = ""

    @property
    def name(self) -> str:
        """The column's name in options: `last`, `last.difference` or `n`."""
        return self.measure if self.kind == "mean" else f"{self.measure}.{self.kind}".removeprefix(".")


class Table(NamedTuple):
    """A table as text; every format is written from it."""

    frame: pd.DataFrame  # the first column has the names
    legend: str  # the explanation of its signs and column titles


def columns(comparison: Comparison, measures: Sequence[str], differences: Collection[str]) -> list[Column]:
    """Return the columns of a table of these measures.

    differences: the measures that are followed by the paired difference to the baseline, if there is a baseline, and by
    its p-value. A measure that a paper printed is followed by the published value.
    """
    compared = differences if comparison.baseline is not None else ()
    printed = _printed(comparison)
    shown = [Column("n")]
    for measure in measures:
        shown.append(Column("mean", measure))
        shown += [Column("published", measure)] if measure in printed else []
        shown += [Column("difference", measure)] if measure in compared else []
        shown += [Column("p_holm", measure)] if measure in compared and comparison.p_values[measure] else []
    return shown


def short_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of the short table, beginning with the measure that is tested and drawn."""
    measures = {comparison.main, *_printed(comparison)}
    measures |= {name for name, measure in MEASURES.items() if comparison.select in measure.short}
    costs = ("rounds_to_", "virtual_s_to_")
    shown = [measure for measure in comparison.measures if measure in measures or measure.startswith(costs)]
    return columns(comparison, sorted(shown, key=lambda measure: measure != comparison.main), {comparison.main})


def all_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of the table of all measures."""
    return columns(comparison, comparison.measures, ACCURACIES)


def chosen_columns(comparison: Comparison, names: Sequence[str]) -> list[Column]:
    """The columns with these names: `n`, a measure, or a measure with a suffix, such as `last.difference`.

    Raises `ScenarioError` for a name that this comparison has no column of.
    """
    allowed = {column.name: column for column in columns(comparison, comparison.measures, comparison.measures)}
    for name in names:
        if name not in allowed:
            listed = ", ".join(key for key in allowed if "." not in key)
            raise ScenarioError(
                f"--columns: {name} given{suggest(name, allowed)}; allowed: {listed}. A cost to a target needs "
                "--target, .difference needs --baseline, .p_holm also three seeds, and .published needs a paper's value"
            )
    return [allowed[name] for name in names]


def _printed(comparison: Comparison) -> set[str]:
    """Return the measures for which a paper printed a value."""
    return {measure for variant in comparison.variants for measure in variant.published}


def variants_table(comparison: Comparison, shown: Sequence[Column] | None = None) -> Table:
    """Return the table of variants with these columns; default: the short table."""
    import pandas as pd

    shown = short_columns(comparison) if shown is None else shown
    titles = ["variant"]
    latest = ""  # the measure of the previous column
    short = {"published": "published", "difference": f"vs {comparison.baseline}", "p_holm": "p (Holm)", "n": "n"}
    for column in shown:
        text = short.get(column.kind, "")
        # The title of a difference contains its measure, unless the previous column shows the same measure.
        if column.measure and (column.kind == "mean" or column.measure != latest):
            text = f"{title(column.measure)} {text}"
        titles.append(text.strip())
        latest = column.measure or latest
    rows = [[one.name, *(_cell(comparison, one.name, column) for column in shown)] for one in comparison.variants]
    return Table(pd.DataFrame(rows, columns=titles), _legend(comparison, shown))


def _cell(comparison: Comparison, name: str, column: Column) -> str:
    """Return the text of a variant's cell; "-" if nothing was measured."""
    measure, count = column.measure, len(comparison.pairs(name))
    if column.kind == "n":
        return str(count)
    if column.kind == "p_holm":
        return _p(comparison.p_values[measure].get(name))
    if column.kind == "difference":
        return _with_spread(comparison, measure, comparison.difference(name, measure), count, sign=True)
    if column.kind == "published":
        paper = comparison.published(name).get(measure)
        return "-" if paper is None or paper.value is None else number(paper.value, measure)
    reached, _ = comparison.reached(name, measure)
    if is_cost_to_target(measure) and reached < count:
        return f"{reached} of {count}"
    return _with_spread(comparison, measure, comparison.estimate(name, measure), count)


def _with_spread(comparison: Comparison, measure: str, found: Estimate | None, count: int, sign: bool = False) -> str:
    """Return a mean or a difference with its spread, and "(n of N)" if only n of a variant's N runs have a value.

    A cost that is the same with every seed has no spread.
    """
    if found is None:
        return "-"
    after = found.spread(comparison.spread)
    is_constant = measure not in ACCURACIES and (after or 0.0) <= ROUNDING * max(1.0, abs(found.mean))
    spread = "" if after is None or is_constant else f" ± {number(after, measure)}"
    return number(found.mean, measure, sign) + spread + (f" ({found.n} of {count})" if found.n < count else "")


def number(value: float, measure: str, sign: bool = False) -> str:
    """Format a value: accuracies in per cent with two decimals, others with four digits or all before the point.

    sign: with a plus if it is positive.
    """
    value = 0.0 if abs(value) < ROUNDING else value
    plus = "+" if sign and value else ""
    if measure in ACCURACIES:
        return f"{100 * value:{plus}.2f}"
    digits = ".0f" if math.isfinite(value) and abs(value) >= 1000 else ".4g"
    return f"{value:{plus}{digits}}"


def _p(value: float | None) -> str:
    """Format a p-value, with a mark if it is significant."""
    if value is None:
        return "-"
    text = "<0.001" if value < 0.001 else f"{value:.3f}"
    return f"{text} *" if value < SIGNIFICANT else text


def tasks_table(comparison: Comparison) -> Table | None:
    """Return the table of methods over all tasks; None unless there are several tasks."""
    frame = comparison.over_tasks()
    if frame is None:
        return None
    better = frame.pop("probability_of_improvement").astype(float)
    frame["iqm"] = [number(value, comparison.main) for value in frame["iqm"]]
    if better.notna().any():
        frame["better"] = ["-" if math.isnan(value) else f"{value:.2f}" for value in better]
    legend = (
        f"IQM, in %, is the interquartile mean of the {comparison.accuracy.phrase}. It covers all tasks, and the seeds "
        "that a method has on every task; a task is a combination of data and client settings."
    )
    titles = {"iqm": "IQM", "better": f"P(better than {comparison.baseline})"}
    return Table(frame.rename(columns=titles).astype(str), legend)


def _legend(comparison: Comparison, shown: Sequence[Column]) -> str:
    """Return the explanation of the signs and titles of a table with these columns."""
    kinds = {column.kind for column in shown}
    sentences = ["Accuracies in %.", SPREADS[comparison.spread]]
    if "difference" in kinds:
        sentences.append(f"vs {comparison.baseline}: the difference to {comparison.baseline}, paired over seeds.")
    if "p_holm" in kinds:
        sentences.append(
            "p (Holm): p-value of the paired t-test, with Holm's correction for all differences in the column; "
            "*: significant (p < 0.05)."
        )
    if any(is_cost_to_target(column.measure) for column in shown):
        sentences.append(
            f"Costs to a target: the mean cost if accuracy/{comparison.targets_on} reaches it in all runs, else the "
            "number of runs in which it does."
        )
    if "published" in kinds:
        papers = (paper for variant in comparison.variants for paper in variant.published.values())
        sources = dict.fromkeys(paper.source for paper in papers)
        sentences.append(f"published: value of {'; '.join(sources)}.")
    return " ".join([*sentences, "`raysim list measures` explains all measures."])


def print_comparison(comparison: Comparison, file: TextIO | None = None, shown: Sequence[Column] | None = None) -> None:
    """Print tables with the columns in `shown` (default: the short table) for a terminal, then the notes."""
    console = Console(file=file)
    _print_table(variants_table(comparison, shown), console)
    if tasks := tasks_table(comparison):
        console.print()
        _print_table(tasks, console)
    for note in comparison.notes:
        _print(console, f"note: {note}")


def _print_table(table: Table, console: Console) -> None:
    """Print a table. Columns that exceed the terminal's width are printed below it, next to the names again."""
    import pandas as pd

    name = table.frame.columns[0]
    frame = table.frame.set_index(name).rename_axis(index=None, columns=name)
    with pd.option_context("display.unicode.east_asian_width", True):
        _print(console, frame.to_string(line_width=console.width if console.is_terminal else None))
    console.print()
    _print(console, table.legend, style="dim")


def _print(console: Console, text: str, style: str = "") -> None:
    """Print text for a terminal. A pipe has no width, so lines are not wrapped for it."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def latex(comparison: Comparison, shown: Sequence[Column] | None = None) -> str:
    r"""Return the table of these columns (default: the short table) in LaTeX; it needs
    `\usepackage{booktabs}`."""
    table = variants_table(comparison, shown)
    text = table.frame.to_latex(index=False, escape=True, column_format="l" + "r" * (table.frame.shape[1] - 1))
    text = re.sub(r"(?<=[ (])([+-])(?=\d)", r"$\1$", text.replace("±", r"$\pm$"))  # a minus sign instead of a hyphen
    comments = [r"\usepackage{booktabs}", table.legend, *comparison.notes]
    return "\n".join([*(f"% {comment}" for comment in comments), text])


def write_tables(comparison: Comparison, folder: Path, shown: Sequence[Column] | None = None) -> list[Path]:
    """Write comparison.tex, comparison.csv and runs.csv into a folder, created if missing. Raises `OSError`.

    shown: the columns in LaTeX; CSV has all measures.
    """
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("comparison.tex", "comparison.csv", "runs.csv")]
    files[0].write_text(latex(comparison, shown), encoding="utf-8")
    comparison.frame.to_csv(files[1], index=False)
    pd.DataFrame(comparison.runs).to_csv(files[2], index=False)
    return files
