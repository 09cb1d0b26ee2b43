"""The table of a comparison: its columns with units and digits, its cells, its explanation.

`formats.py` writes it for the terminal and in Markdown, `latex.py` in LaTeX, and `report.py` in HTML.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.comparison.compare import Comparison
from raysim.comparison.main_measure import in_words
from raysim.comparison.measures import ACCURACIES, MIB, canonical, is_cost_to_target, sends_nothing, title
from raysim.comparison.statistics import SIGNIFICANT, Estimate, Spread
from raysim.report.figures import OVER
from raysim.report.units import plural

ROUNDING = 1e-12
"""Smaller numbers are errors of rounding: they are shown as 0."""

COSTS = ("total_mib", "total_gflop", "virtual_s", "dropped")
COLUMNS = ("last", "last_took_part", "last_current", "at_best_val", "best_participants", "worst_decile", *COSTS)
"""Measures of the terminal's table, besides rounds and virtual seconds to a target; files have all measures."""

VAL_COLUMNS = {
    "val": ("at_best_val", "best_val", "best_val_round", "worst_decile"),
    "val_current": ("at_best_val_current", "best_val_current", "best_val_current_round", "worst_decile_current"),
}
"""The same if validation selects the round, before costs; no test sample chooses any of them."""

SHORT_MEANINGS = {
    "last": "mean of all clients' latest test accuracies",
    "last_took_part": "the same without the clients that have not taken part yet",
    "last_current": "mean of all clients' latest test accuracies, each tested after it received the server's current "
    "message",
    "best_participants": "greatest mean test accuracy of a round's participants",
    "worst_decile": "mean test accuracy of the worst tenth of the clients",
    "total_mib": "sent and received by all clients",
    "total_gflop": "computed by clients and server",
}
"""Measure of the terminal's table -> its meaning in a few words."""

SPREADS: Mapping[Spread, str] = {
    "interval": "± is half the 95% confidence interval over seeds (Student's t).",
    "std": "± is the standard deviation over seeds (n - 1 in the denominator).",
}
"""What ± shows -> its explanation below a table."""

Kind = Literal["n", "mean", "published", "difference", "p_holm", "printed"]
SUFFIXES: tuple[Kind, ...] = ("difference", "p_holm", "published")
"""The columns that belong to a measure, besides its mean."""


class Column(NamedTuple):
    """A column of the table of variants, after the variants' names."""

    kind: Kind
    measure: str = ""  # of "printed": a paper's metric that no measure has

    @property
    def name(self) -> str:
        """The column's name in options: `last`, `last.difference` or `n`."""
        return self.measure if self.kind == "mean" else f"{self.measure}.{self.kind}".removeprefix(".")


class TableCell(NamedTuple):
    """A cell of the table of variants: a number, text, or both. Every format of the table is written from it."""

    text: str = ""  # before the number, or instead of it
    mean: str = ""
    spread: str = ""  # the number after ±
    after: str = ""

    def __str__(self) -> str:
        """Return the cell as the terminal, Markdown and HTML show it."""
        return f"{self.text}{self.mean}{f' ± {self.spread}' if self.spread else ''}{self.after}"


@dataclass(frozen=True)
class Scale:
    """The title, the unit and the digits of a column."""

    title: str
    factor: float  # a value in the column's unit is this times the measure's
    decimals: int
    unit: str = ""  # of bytes or operations, as in the title

    def __call__(self, value: float, sign: bool = False) -> str:
        """Format a value of the measure; sign: with a plus if it is positive."""
        if abs(value) < ROUNDING:
            value = 0.0
        return f"{self.factor * value:{'+' if sign and value else ''}.{self.decimals}f}"


def scale_of(comparison: Comparison, column: Column) -> Scale:
    """Choose the unit and the digits of a column with numbers. All columns of a measure have one unit."""
    measure, name = column.measure, title(column.measure)
    if measure in ACCURACIES:
        return Scale(name, 100.0, 2)
    unit, factor = "", 1.0
    for own, axis, size in (("MiB", "bytes", MIB), ("GFLOP", "operations", 1e9)):
        if own in name:
            unit = own
            of_both = [_estimates(comparison, Column(kind, measure)) for kind in ("mean", "published")]
            if sizes := _sizes(one for of_kind in of_both for one in of_kind):
                # The least number is at least 0.1 in this unit, so that three decimals show three of its digits.
                chosen = OVER[axis].unit([size * min(max(sizes), 10 * min(sizes))])
                name, unit, factor = name.replace(own, chosen.name), chosen.name, size / chosen.size
    estimates = [one for one in _estimates(comparison, column) if one is not None]
    values = [factor * value for one in estimates for value in (one.mean, one.spread(comparison.spread) or 0.0)]
    sizes = _sizes(estimates)
    if not sizes or all(abs(value - round(value)) < 1e-9 for value in values if math.isfinite(value)):
        return Scale(name, factor, 0, unit)
    # Three digits of the smallest mean.
    digits = max(0, 2 - math.floor(math.log10(factor * min(sizes))))
    return Scale(name, factor, min(5 if column.kind == "difference" else 3, digits), unit)


def _estimates(comparison: Comparison, column: Column) -> list[Estimate | None]:
    """Return the numbers of a column, one per variant."""
    names = [variant.name for variant in comparison.variants]
    if column.kind == "difference":
        return [comparison.difference(name, column.measure) for name in names]
    if column.kind != "published":
        return [comparison.estimate(name, column.measure) for name in names]
    papers = [comparison.published(name).get(column.measure) for name in names]
    return [None if paper is None or paper.value is None else Estimate(1, paper.value) for paper in papers]


def _sizes(estimates: Iterable[Estimate | None]) -> list[float]:
    """Absolute values of the means that are finite and not 0."""
    return [abs(one.mean) for one in estimates if one and math.isfinite(one.mean) and abs(one.mean) >= ROUNDING]


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
    papers = [one for variant in comparison.variants for one in variant.published]
    return shown + [
        Column("printed", metric) for metric in dict.fromkeys(one.metric for one in papers if not one.measure)
    ]


def chosen_columns(comparison: Comparison, names: Sequence[str]) -> list[Column]:
    """The columns with these names: `n`, a measure, or a measure followed by one of `SUFFIXES`: `last.difference`.

    Raises `ScenarioError` for a name that this comparison has no column of.
    """
    known = columns(comparison, comparison.measures, comparison.measures)
    if comparison.baseline is not None:
        known += [Column("p_holm", measure) for measure in comparison.measures]
    allowed = {column.name: column for column in known if column.kind != "printed"}
    names = [canonical(name) for name in names]
    for name in names:
        if name not in allowed:
            listed = ", ".join(key for key in allowed if "." not in key)
            raise ScenarioError(
                f"--columns: {name} given{suggest(name, allowed)}; allowed: {listed}. A cost to a target needs "
                "--target, .difference and .p_holm need --baseline, and .published needs a paper's value"
            )
    return [allowed[name] for name in names]


def rows_of(comparison: Comparison, shown: Sequence[Column]) -> list[list[str]]:
    """Return the table of variants with these columns: a title row, then a row per variant."""
    first = ["variant", *(variant.name for variant in comparison.variants)]
    others = [[title, *map(str, cells(comparison, column))] for column, title in titled(comparison, shown)]
    return [list(row) for row in zip(first, *others, strict=True)]


def titled(comparison: Comparison, shown: Sequence[Column]) -> Iterator[tuple[Column, str]]:
    """Each column with its title. A difference names its measure, unless the column of the means precedes it."""
    latest = ""  # the measure of the columns so far
    short = {"published": "published", "difference": f"vs {comparison.baseline}", "p_holm": "p (Holm)", "n": "n"}
    for column in shown:
        text = f"{column.measure}, published" if column.kind == "printed" else short.get(column.kind, "")
        if column.kind in ("mean", *SUFFIXES):
            if column.kind == "mean" or column.measure != latest:
                text = f"{scale_of(comparison, Column('mean', column.measure)).title} {text}".rstrip()
            latest = column.measure
        yield column, text


def cells(comparison: Comparison, column: Column) -> list[TableCell]:
    """Return a column of the table of variants: one cell per variant. All numbers of a column have the same unit.

    If only n of a variant's N runs have a measure, or only n share seed and partition with the baseline, the cell says
    "(n of N)". A published value is followed by the measured mean minus that value, in brackets.
    """
    names = [variant.name for variant in comparison.variants]
    if column.kind == "n":
        return [TableCell(str(len(comparison.pairs(name)))) for name in names]
    if column.kind == "printed":
        texts = ({one.metric: one.text for one in variant.published} for variant in comparison.variants)
        return [TableCell(of_variant.get(column.measure, "-")) for of_variant in texts]
    if column.kind == "p_holm":
        return [TableCell(_p(comparison.p_values[column.measure].get(name))) for name in names]
    scale, estimates = scale_of(comparison, column), _estimates(comparison, column)
    make = _published if column.kind == "published" else _cell
    return [make(comparison, name, column, scale, one) for name, one in zip(names, estimates, strict=True)]


def _cell(comparison: Comparison, name: str, column: Column, scale: Scale, found: Estimate | None) -> TableCell:
    """Return a mean or a difference, with its spread; "-" if nothing was measured or sent.

    There is no spread if there are too few seeds, or if a cost is the same with every seed.
    """
    measure, is_mean, count = column.measure, column.kind == "mean", len(comparison.pairs(name))
    has_reached = is_mean and is_cost_to_target(measure)
    if has_reached and measure.startswith("virtual_s_") and "virtual_s" not in comparison.measured[name]:
        return TableCell("-")
    reached = "{} of {}".format(*comparison.reached(name, measure)) if has_reached else ""
    if found is None or (is_mean and sends_nothing(measure, found.mean)):
        return TableCell(reached or "-")
    after = found.spread(comparison.spread)
    if after is not None and measure not in ACCURACIES and after < ROUNDING * max(1.0, abs(found.mean)):
        after = None
    return TableCell(
        f"{reached}: " if reached else "",
        scale(found.mean, sign=not is_mean),
        "" if after is None else scale(after),
        f" ({found.n} of {count})" if found.n < count and not has_reached else "",
    )


def _published(comparison: Comparison, name: str, column: Column, scale: Scale, paper: Estimate | None) -> TableCell:
    """Return a paper's value and, in brackets, the measured mean minus that value."""
    if paper is None:
        return TableCell("-")
    found = comparison.estimate(name, column.measure)
    less = "" if found is None else f" ({scale(found.mean - paper.mean, sign=True)})"
    return TableCell(scale(paper.mean) + less)


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


def tasks_legend(measure: str) -> str:
    """Return the explanation of the table of methods over all tasks. measure: the main one of the comparison."""
    return (
        f"IQM, in %, is the interquartile mean of the {in_words(measure)}. It covers all tasks, and the seeds that a "
        "method has on every task; a task is a combination of data and client settings."
    )


def _printed(comparison: Comparison) -> set[str]:
    """Return the measures of which a paper printed a value."""
    return {measure for variant in comparison.variants for measure in comparison.published(variant.name)}


def short(comparison: Comparison) -> list[str]:
    """Return the measures of the short table, beginning with the one that is tested and drawn."""
    printed = _printed(comparison)
    costs = ("rounds_to_", "virtual_s_to_")
    columns = COLUMNS if comparison.select == "last" else (*VAL_COLUMNS[comparison.select], *COSTS)
    shown = [m for m in comparison.measures if m in (comparison.main, *columns) or m in printed or m.startswith(costs)]
    return sorted(shown, key=lambda measure: measure != comparison.main)


def short_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of the short table."""
    return columns(comparison, short(comparison), {comparison.main})


def all_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of the table of all measures."""
    return columns(comparison, comparison.measures, ACCURACIES)


def legend(comparison: Comparison, shown: Sequence[Column]) -> str:
    """Return the explanation of the signs and titles of a table with these columns."""
    kinds = {column.kind for column in shown}
    measures = {column.measure for column in shown if column.kind == "mean"}
    sentences = []
    if any(column.measure in ACCURACIES for column in shown):
        sentences.append("Accuracies in %.")
    if "n" not in kinds:
        sentences.append(_seeds(comparison))
    if any(one.spread for column in shown for one in cells(comparison, column)):
        sentences.append(SPREADS[comparison.spread])
    if "difference" in kinds:
        sentences.append(f"vs {comparison.baseline}: the difference to {comparison.baseline}, paired over seeds.")
    if "p_holm" in kinds:
        sentences.append(
            "p (Holm): p-value of the paired t-test, with Holm's correction for all differences in the column; "
            "*: significant (p < 0.05)."
        )
    if any(map(is_cost_to_target, measures)):
        sentences.append("Costs to a target: number of runs that reach the target and, if all runs do, the mean cost.")
        reaching = {
            "participants": "the mean test accuracy of a round's participants",
            "all_current": "the mean test accuracy of all clients, each tested after it received the server's current "
            "message,",
            "val": "accuracy/val",
            "val_current": "accuracy/val_current",
        }
        if comparison.targets_on in reaching:
            sentences.append(f"A target counts as reached when {reaching[comparison.targets_on]} reaches it.")
    if "at_best_val" in measures:
        sentences.append("test at best val.: test accuracy in the round with the greatest validation accuracy.")
    if "at_best_val_current" in measures:
        sentences.append(
            "current test at best val.: test accuracy in the round with the greatest validation accuracy; clients are "
            "tested and validated after they received the server's current message."
        )
    if kinds & {"published", "printed"}:
        sources = dict.fromkeys(one.source for variant in comparison.variants for one in variant.published)
        sentences.append(f"published: value of {'; '.join(sources)}; in brackets: measured mean minus published value.")
    explained = [
        f"{scale_of(comparison, Column('mean', m)).title}: {short}"
        for m, short in SHORT_MEANINGS.items()
        if m in measures
    ]
    if explained:
        sentences.append(f"{'; '.join(explained)}. `raysim list measures` explains all measures.")
    return " ".join(sentences)


def _seeds(comparison: Comparison) -> str:
    """Return how many seeds each variant has."""
    counts = {variant.name: len(comparison.pairs(variant.name)) for variant in comparison.variants}
    if len(set(counts.values())) == 1:
        return f"{plural(next(iter(counts.values())), 'seed')} per variant."
    return f"Seeds: {', '.join(f'{name} {count}' for name, count in counts.items())}."
