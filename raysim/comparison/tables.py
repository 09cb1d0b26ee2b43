"""The tables of a comparison: their columns, units and digits, their cells, and their explanations.

`formats.py` writes a table for the terminal, in Markdown and in LaTeX; `report.py` writes it in HTML.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.comparison.compare import Comparison
from raysim.comparison.measures import (
    ACCURACIES,
    GFLOP,
    MEASURES,
    MIB,
    canonical,
    is_cost_to_target,
    sends_nothing,
    title,
)
from raysim.comparison.statistics import SIGNIFICANT, Estimate, Spread, holm, paired_difference, paired_p_value
from raysim.comparison.sweep_card import TrialsCard
from raysim.report.figures import OVER
from raysim.report.units import plural

ROUNDING = 1e-12
"""Smaller numbers are errors of rounding: they are shown as 0."""

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

    rows: Sequence[Sequence[str]]  # the titles, then a row per variant
    legend: str  # the explanation of its signs and titles
    best: Collection[tuple[int, int]] = ()  # (row, column) of the means that LaTeX shows in bold


@dataclass(frozen=True)
class Scale:
    """The title, the unit and the digits of a column."""

    title: str
    factor: float  # a value in the column's unit is this times the measure's
    decimals: int

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
    factor = 1.0
    for own, axis, size in (("MiB", "bytes", MIB), ("GFLOP", "operations", GFLOP)):
        if own in name:
            of_both = [_estimates(comparison, Column(kind, measure)) for kind in ("mean", "published")]
            if sizes := _sizes(one for of_kind in of_both for one in of_kind):
                # The least number is at least 0.1 in this unit, so that three decimals show three of its digits.
                chosen = OVER[axis].unit([size * min(max(sizes), 10 * min(sizes))])
                name, factor = name.replace(own, chosen.name), size / chosen.size
    estimates = [one for one in _estimates(comparison, column) if one is not None]
    values = [factor * value for one in estimates for value in (one.mean, one.spread(comparison.spread) or 0.0)]
    sizes = _sizes(estimates)
    if not sizes or all(abs(value - round(value)) < 1e-9 for value in values if math.isfinite(value)):
        return Scale(name, factor, 0)
    # Three digits of the smallest mean.
    digits = max(0, 2 - math.floor(math.log10(factor * min(sizes))))
    return Scale(name, factor, min(5 if column.kind == "difference" else 3, digits))


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
    known = columns(comparison, comparison.measures, comparison.measures)
    if comparison.baseline is not None:
        known += [Column("p_holm", measure) for measure in comparison.measures]
    allowed = {column.name: column for column in known}
    for name in map(canonical, names):
        if name not in allowed:
            listed = ", ".join(key for key in allowed if "." not in key)
            raise ScenarioError(
                f"--columns: {name} given{suggest(name, allowed)}; allowed: {listed}. A cost to a target needs "
                "--target, .difference and .p_holm need --baseline, and .published needs a paper's value"
            )
    return [allowed[canonical(name)] for name in names]


def _printed(comparison: Comparison) -> set[str]:
    """Return the measures of which a paper printed a value."""
    return {measure for variant in comparison.variants for measure in variant.published}


def variants_table(comparison: Comparison, shown: Sequence[Column] | None = None) -> Table:
    """Return the table of variants with these columns; default: the short table."""
    shown = short_columns(comparison) if shown is None else shown
    names = [variant.name for variant in comparison.variants]
    titles, best = ["variant"], set()
    latest = ""  # the measure of the columns so far
    short = {"published": "published", "difference": f"vs {comparison.baseline}", "p_holm": "p (Holm)", "n": "n"}
    for place, column in enumerate(shown, 1):
        text = short.get(column.kind, "")
        # A difference names its measure, unless the column of the means precedes it.
        if column.kind == "mean" or column.measure != latest:
            text = f"{scale_of(comparison, Column('mean', column.measure)).title} {text}" if column.measure else text
        titles.append(text.strip())
        latest = column.measure or latest
        if column.kind == "mean":
            best |= {(names.index(name), place) for name in best_of(comparison, column.measure)}
    body = zip(names, *(cells(comparison, column) for column in shown), strict=True)
    return Table([titles, *map(list, body)], _legend(comparison, shown), best)


def cells(comparison: Comparison, column: Column) -> list[str]:
    """Return a column of the table of variants: one cell per variant. All numbers of a column have the same unit.

    If only n of a variant's N runs have a measure, or only n share seed and partition with the baseline, the cell says
    "(n of N)". A published value is followed by the measured mean minus that value, in brackets.
    """
    names = [variant.name for variant in comparison.variants]
    if column.kind == "n":
        return [str(len(comparison.pairs(name))) for name in names]
    if column.kind == "p_holm":
        return [_p(comparison.p_values[column.measure].get(name)) for name in names]
    scale, estimates = scale_of(comparison, column), _estimates(comparison, column)
    make = _published if column.kind == "published" else _cell
    return [make(comparison, name, column, scale, one) for name, one in zip(names, estimates, strict=True)]


def _cell(comparison: Comparison, name: str, column: Column, scale: Scale, found: Estimate | None) -> str:
    """Return a mean or a difference, with its spread; "-" if nothing was measured or sent.

    There is no spread if there are too few seeds, or if a cost is the same with every seed. A cost to a target that
    some runs miss is the number of runs that reach it.
    """
    measure, is_mean, count = column.measure, column.kind == "mean", len(comparison.pairs(name))
    reached, _ = comparison.reached(name, measure)
    has_time = not measure.startswith("virtual_s_") or "virtual_s" in comparison.measured[name]
    if is_mean and is_cost_to_target(measure) and reached < count and has_time:
        return f"{reached} of {count}"
    if found is None or (is_mean and sends_nothing(measure, found.mean)):
        return "-"
    after = found.spread(comparison.spread)
    if after is not None and measure not in ACCURACIES and after < ROUNDING * max(1.0, abs(found.mean)):
        after = None
    spread = "" if after is None else f" ± {scale(after)}"
    return f"{scale(found.mean, sign=not is_mean)}{spread}" + (f" ({found.n} of {count})" if found.n < count else "")


def _published(comparison: Comparison, name: str, column: Column, scale: Scale, paper: Estimate | None) -> str:
    """Return a paper's value and, in brackets, the measured mean minus that value."""
    if paper is None:
        return "-"
    found = comparison.estimate(name, column.measure)
    return scale(paper.mean) + ("" if found is None else f" ({scale(found.mean - paper.mean, sign=True)})")


def _p(value: float | None) -> str:
    """Format a p-value, with a mark if it is significant."""
    if value is None:
        return "-"
    text = "<0.001" if value < 0.001 else f"{value:.3f}"
    return f"{text} *" if value < SIGNIFICANT else text


def best_of(comparison: Comparison, measure: str) -> set[str]:
    """Return the variants that are significantly better than every other variant of their task, at most one per task.

    The p-values are those of paired t-tests over seeds, with Holm's correction for all pairs of the column. Costs of
    all rounds have no best variant, and variants that send nothing are not ranked by what they send.
    """
    if measure == "std" or is_cost_to_target(measure):
        sign = -1
    elif measure in ACCURACIES or measure == "jain":
        sign = 1
    else:
        return set()
    by_task: dict[tuple[str, ...], list[str]] = {}
    for variant in comparison.variants:
        found = comparison.estimate(variant.name, measure)
        if found is not None and not sends_nothing(measure, found.mean):
            by_task.setdefault(variant.task, []).append(variant.name)
    values = {variant.name: comparison.measured[variant.name].get(measure, {}) for variant in comparison.variants}
    pairs = [pair for names in by_task.values() for pair in combinations(names, 2)]
    tested = {pair: paired_p_value(values[pair[0]], values[pair[1]]) for pair in pairs}
    corrected = holm({frozenset(pair): p for pair, p in tested.items() if p is not None})

    def beats(one: str, other: str) -> bool:
        less = paired_difference(values[one], values[other])
        significant = corrected.get(frozenset((one, other)), 1.0) < SIGNIFICANT
        return less is not None and sign * less.mean > 0 and significant

    return {
        one
        for names in by_task.values()
        for one in names
        if len(names) > 1 and all(beats(one, other) for other in names if other != one)
    }


def tasks_table(comparison: Comparison) -> Table | None:
    """Return the table of methods over all tasks; None unless there are several tasks."""
    if not comparison.tasks:
        return None
    has_baseline = any(row.probability_of_improvement is not None for row in comparison.tasks)
    rows = [["method", "tasks", "IQM", *([f"P(better than {comparison.baseline})"] if has_baseline else [])]]
    for row in comparison.tasks:
        better = "-" if row.probability_of_improvement is None else f"{row.probability_of_improvement:.2f}"
        rows.append([row.method, str(row.tasks), f"{100 * row.iqm:.2f}", *([better] if has_baseline else [])])
    legend = (
        f"IQM, in %, is the interquartile mean of the {comparison.accuracy.phrase}. It covers all tasks, and the seeds "
        "that a method has on every task; a task is a combination of data and client settings."
    )
    return Table(rows, legend)


def trials_table(card: TrialsCard) -> Table:
    """Return the table of a tuning's trials."""
    keys = list(dict.fromkeys(key for trial in card.trials for key in trial.values))
    factor, unit = (100.0, " in %") if card.select.startswith("accuracy/") else (1.0, "")
    rows = [["method", "trial", *keys, "rounds", card.select, "chosen"]]
    for trial in card.trials:
        values = [trial.values.get(key, "-") for key in keys]
        score = "-" if trial.score is None else f"{factor * trial.score:.4g}"
        score = "failed or diverged" if trial.failed else score
        chosen = "chosen" if trial.chosen else ""
        rows.append([trial.method, str(trial.number), *values, str(trial.rounds), score, chosen])
    over = f"mean over {plural(len(card.seeds), 'seed')}"
    return Table(rows, f"{card.select}{unit}, {over}, after the number of rounds in the column `rounds`.")


def _legend(comparison: Comparison, shown: Sequence[Column]) -> str:
    """Return the explanation of the signs and titles of a table with these columns."""
    kinds = {column.kind for column in shown}
    sentences = []
    if any(column.measure in ACCURACIES for column in shown):
        sentences.append("Accuracies in %.")
    if any("±" in cell for column in shown for cell in cells(comparison, column)):
        sentences.append(SPREADS[comparison.spread])
    if "difference" in kinds:
        sentences.append(f"vs {comparison.baseline}: the difference to {comparison.baseline}, paired over seeds.")
    if "p_holm" in kinds:
        sentences.append(
            "p (Holm): p-value of the paired t-test, with Holm's correction for all differences in the column; "
            "*: significant (p < 0.05)."
        )
    if any(column.kind == "mean" and is_cost_to_target(column.measure) for column in shown):
        text = "Costs to a target: the mean cost if all runs reach the target, else the number of runs that do"
        reaching = "" if comparison.targets_on == "all" else f"; accuracy/{comparison.targets_on} must reach it"
        sentences.append(f"{text}{reaching}.")
    if "published" in kinds:
        papers = (paper for variant in comparison.variants for paper in variant.published.values())
        sources = dict.fromkeys(paper.source for paper in papers)
        sentences.append(f"published: value of {'; '.join(sources)}; in brackets: measured mean minus published value.")
    return " ".join([*sentences, "`raysim list measures` explains all measures."])
