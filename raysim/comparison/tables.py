"""The tables of a comparison: their columns, cells and explanations. `formats.py` and `latex.py` write them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.comparison.compare import Comparison
from raysim.comparison.main_measure import in_words
from raysim.comparison.measures import ACCURACIES, canonical, is_cost_to_target, sends_nothing
from raysim.comparison.published import Published
from raysim.comparison.scale import ROUNDING, Scale, scales_of
from raysim.comparison.statistics import SIGNIFICANT, Estimate, Spread
from raysim.comparison.variants import Variant
from raysim.report.units import plural

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


class Cell(NamedTuple):
    """A cell of the table of variants: a number, text, or both. Every format of the table is written from it."""

    text: str = ""  # before the number, or instead of it
    mean: str = ""
    spread: str = ""  # the number after ±
    after: str = ""

    def __str__(self) -> str:
        """Return the cell as the terminal, Markdown and HTML show it."""
        return f"{self.text}{self.mean}{f' ± {self.spread}' if self.spread else ''}{self.after}"


def cell(
    measure: str, scale: Scale, estimate: Estimate | None, sign: bool = False, spread: Spread = "interval"
) -> Cell:
    """Format a mean and its spread in the column's unit; "-" if nothing was measured or sent.

    There is no spread if there are too few seeds, or if a cost is the same with every seed.
    """
    if estimate is None or (not sign and sends_nothing(measure, estimate.mean)):
        return Cell("-")
    after = estimate.spread(spread)
    if after is not None and measure not in ACCURACIES and after < ROUNDING * max(1.0, abs(estimate.mean)):
        after = None
    return Cell(mean=scale(estimate.mean, sign), spread="" if after is None else scale(after))


def columns(comparison: Comparison, measures: Sequence[str], differences: Collection[str]) -> list[Column]:
    """The columns of a table of these measures.

    differences: the measures that are followed by the paired difference to the baseline, if there is a baseline, and by
    its p-value. A measure that a paper printed is followed by the published value.
    """
    if comparison.baseline is None:
        differences = ()
    printed = _printed(comparison)
    shown = [Column("n")]
    for measure in measures:
        shown.append(Column("mean", measure))
        shown += [Column("published", measure)] if measure in printed else []
        shown += [Column("difference", measure)] if measure in differences else []
        shown += [Column("p_holm", measure)] if measure in differences and comparison.p_values[measure] else []
    papers = [one for variant in comparison.variants for one in variant.published]
    return shown + [
        Column("printed", metric) for metric in dict.fromkeys(one.metric for one in papers if not one.measure)
    ]


def chosen_columns(comparison: Comparison, names: Sequence[str]) -> list[Column]:
    """The columns with these names: `n`, a measure, or a measure followed by one of `SUFFIXES`: `last.difference`.

    Raises `ScenarioError` for a name that this comparison has no column of.
    """
    allowed = {"n": Column("n"), **{measure: Column("mean", measure) for measure in comparison.measures}}
    printed = _printed(comparison)
    for measure in comparison.measures:
        if comparison.baseline is not None:
            allowed[f"{measure}.difference"] = Column("difference", measure)
            allowed[f"{measure}.p_holm"] = Column("p_holm", measure)
        if measure in printed:
            allowed[f"{measure}.published"] = Column("published", measure)
    names = [f"{canonical(measure)}{dot}{kind}" for measure, dot, kind in map(_parts, names)]
    for name in names:
        if name not in allowed:
            listed = ", ".join(key for key in allowed if "." not in key)
            raise ScenarioError(
                f"--columns: {name} given{suggest(name, allowed)}; allowed: {listed}. A cost to a target needs "
                "--target, .difference and .p_holm need --baseline, and .published needs a paper's value"
            )
    return [allowed[name] for name in names]


def _parts(name: str) -> tuple[str, str, str]:
    """A column's name as measure, dot and suffix; the last two are empty without one of `SUFFIXES`."""
    measure, dot, kind = name.rpartition(".")
    return (measure, dot, kind) if kind in SUFFIXES else (name, "", "")


def rows_of(comparison: Comparison, shown: Sequence[Column]) -> list[list[str]]:
    """The table of variants with these columns: a title row, then a row per variant."""
    first = ["variant", *(variant.name for variant in comparison.variants)]
    others = [[title, *map(str, cells(comparison, column))] for column, title in titled(comparison, shown)]
    return [list(row) for row in zip(first, *others, strict=True)]


def titled(comparison: Comparison, shown: Sequence[Column]) -> list[tuple[Column, str]]:
    """Each column with its title. A difference names its measure, unless the column of the means precedes it."""
    pairs, latest = [], ""  # the measure of the columns so far
    for column in shown:
        if column.kind == "printed":
            title = f"{column.measure}, published"
        elif column.kind == "mean":
            title = scales_of(comparison, column.measure).mean.title
        else:
            short = {"published": "published", "difference": f"vs {comparison.baseline}", "p_holm": "p (Holm)"}
            title = short.get(column.kind, "n")
            if column.kind in SUFFIXES and column.measure != latest:
                title = f"{scales_of(comparison, column.measure).mean.title} {title}"
        latest = column.measure if column.kind in ("mean", *SUFFIXES) else latest
        pairs.append((column, title))
    return pairs


def cells(comparison: Comparison, column: Column) -> list[Cell]:
    """Return a column of the table of variants: one cell per variant. All numbers of a column have the same unit.

    If only n of a variant's N runs have a measure, or only n share seed and partition with the baseline, the cell says
    "(n of N)". A published value is followed by the measured mean minus that value, in brackets.
    """
    if column.kind in ("n", "printed", "p_holm"):
        return [Cell(_plain(comparison, variant, column)) for variant in comparison.variants]
    scale: Scale = getattr(scales_of(comparison, column.measure), column.kind)
    return [_number(comparison, variant.name, column, scale) for variant in comparison.variants]


def _plain(comparison: Comparison, variant: Variant, column: Column) -> str:
    """A cell without a unit."""
    if column.kind == "n":
        return str(len(comparison.pairs(variant.name)))
    if column.kind == "printed":
        return {one.metric: one.text for one in variant.published}.get(column.measure, "-")
    return _p(comparison.p_values[column.measure].get(variant.name))


def _number(comparison: Comparison, name: str, column: Column, scale: Scale) -> Cell:
    """A cell of a column with a unit."""
    measure, differs = column.measure, column.kind == "difference"
    estimate = comparison.difference(name, measure) if differs else comparison.estimate(name, measure)
    if column.kind == "published":
        return Cell(_published(scale, estimate, comparison.published(name).get(measure)))
    found = cell(measure, scale, estimate, differs, comparison.spread)
    if is_cost_to_target(measure) and not differs:
        if measure.startswith("virtual_s_") and "virtual_s" not in comparison.measured[name]:
            return Cell("-")
        reached = "{} of {}".format(*comparison.reached(name, measure))
        return found._replace(text=f"{reached}: ") if found.mean else Cell(reached)
    count = len(comparison.pairs(name))
    return found._replace(after=f" ({estimate.n} of {count})") if estimate and estimate.n < count else found


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
    """The explanation of the table of methods over all tasks. measure: the main one of the comparison."""
    return (
        f"IQM, in %, is the interquartile mean of the {in_words(measure)}. It covers all tasks, and the seeds that a "
        "method has on every task; a task is a combination of data and client settings."
    )


def _published(scale: Scale, estimate: Estimate | None, paper: Published | None) -> str:
    """Format a paper's value and, in brackets, the measured mean minus that value."""
    if paper is None or paper.value is None:
        return "-"
    text = scale(paper.value)
    return text if estimate is None else f"{text} ({scale(estimate.mean - paper.value, sign=True)})"


def _printed(comparison: Comparison) -> set[str]:
    """The measures of which a paper printed a value."""
    return {measure for variant in comparison.variants for measure in comparison.published(variant.name)}


def short(comparison: Comparison) -> list[str]:
    """The measures of the short table, beginning with the one that is tested and drawn."""
    printed = _printed(comparison)
    costs = ("rounds_to_", "virtual_s_to_")
    columns = COLUMNS if comparison.select == "last" else (*VAL_COLUMNS[comparison.select], *COSTS)
    shown = [m for m in comparison.measures if m in (comparison.main, *columns) or m in printed or m.startswith(costs)]
    return sorted(shown, key=lambda measure: measure != comparison.main)


def short_columns(comparison: Comparison) -> list[Column]:
    """The columns of the short table."""
    return columns(comparison, short(comparison), {comparison.main})


def all_columns(comparison: Comparison) -> list[Column]:
    """The columns of the table of all measures."""
    return columns(comparison, comparison.measures, ACCURACIES)


def legend(comparison: Comparison, shown: Sequence[Column]) -> str:
    """The explanation of the signs and titles of a table with these columns."""
    kinds = {column.kind for column in shown}
    measures = {column.measure for column in shown if column.kind == "mean"}
    sentences = []
    if any(column.measure in ACCURACIES for column in shown):
        sentences.append("Accuracies in %.")
    if "n" not in kinds:
        sentences.append(_seeds(comparison))
    if any(_has_spread(comparison, column) for column in shown):
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
    explained = [f"{scales_of(comparison, m).mean.title}: {SHORT_MEANINGS[m]}" for m in SHORT_MEANINGS if m in measures]
    if explained:
        sentences.append(f"{'; '.join(explained)}. `raysim list measures` explains all measures.")
    return " ".join(sentences)


def _has_spread(comparison: Comparison, column: Column) -> bool:
    """Whether a cell of this column has a ±, see `cell`."""
    return column.kind in ("mean", "difference") and any(one.spread for one in cells(comparison, column))


def _seeds(comparison: Comparison) -> str:
    """How many seeds each variant has."""
    counts = {variant.name: len(comparison.pairs(variant.name)) for variant in comparison.variants}
    if len(set(counts.values())) == 1:
        return f"{plural(next(iter(counts.values())), 'seed')} per variant."
    return f"Seeds: {', '.join(f'{name} {count}' for name, count in counts.items())}."
