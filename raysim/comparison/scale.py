"""Title, unit and digits of a measure's columns; the tables of the terminal, Markdown, HTML and LaTeX share them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from raysim.comparison.compare import Comparison
from raysim.comparison.measures import ACCURACIES, MIB
from raysim.comparison.statistics import Estimate
from raysim.report.figures import OVER

MOST_DECIMALS = 3

TITLES = {
    "last": "last", "at_best_val": "at best val.", "best": "best", "best_participants": "best part.",
    "last_current": "last current", "at_best_val_current": "current at best val.", "best_current": "best current",
    "best_global": "best global",
    "last_global": "last global", "worst_decile": "worst 10%",
    "worst_decile_current": "worst 10% current", "std": "std clients",
    "min": "min", "jain": "Jain", "macro_f1": "macro F1",
    "val": "val.", "best_val": "max val.", "best_val_round": "max val. round",
    "val_current": "val. current", "best_val_current": "max val. current",
    "best_val_current_round": "max val. current round",
    "up_mib": "MiB up", "down_mib": "MiB down", "both_mib": "MiB each", "total_mib": "MiB", "gflop": "GFLOP each",
    "total_gflop": "GFLOP", "virtual_s": "virtual s", "dropped": "dropped",
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """The unit and the digits of a column."""

    title: str
    factor: float  # a value in the column's unit is this times the measure's
    decimals: int

    def __call__(self, value: float, sign: bool = False) -> str:
        """Format a value of the measure; sign: with a plus if it is positive."""
        shown = f"{self.factor * value:{'+' if sign else ''}.{self.decimals}f}"
        return shown.replace("-", "", 1) if float(shown) == 0 else shown


def title(measure: str) -> str:
    """A column's title."""
    if measure in TITLES:
        return TITLES[measure]
    what, target = measure.split("_to_")
    words = {"rounds": "rounds", "mib": "MiB", "up_mib": "MiB up", "gflop": "GFLOP", "virtual_s": "virtual s"}
    return f"{words[what]} to {100 * float(target):g}%"


def scale_of(comparison: Comparison, measure: str) -> Scale:
    """The unit and the digits of a measure's columns: means, published values and differences to the baseline."""
    name = title(measure)
    if measure in ACCURACIES:
        return Scale(name, 100.0, 2)
    of_means = [comparison.estimate(variant.name, measure) for variant in comparison.variants]
    of_differences = [comparison.difference(variant.name, measure) for variant in comparison.variants]
    papers = [comparison.published(variant.name).get(measure) for variant in comparison.variants]
    printed = [Estimate(1, paper.value) for paper in papers if paper is not None and paper.value is not None]
    estimates = [one for one in (*of_means, *of_differences, *printed) if one is not None]
    means = [abs(one.mean) for one in of_means if one is not None and one.mean and math.isfinite(one.mean)]
    # In a larger unit, the smallest mean would be shown as 0.000.
    largest = min(max(means), min(means) * 10**MOST_DECIMALS) if means else 0.0
    factor = 1.0
    for unit, axis, size in (("MiB", "bytes", MIB), ("GFLOP", "operations", 1e9)):
        if unit in name:
            chosen = OVER[axis].unit([largest * size])
            name, factor = name.replace(unit, chosen.name), size / chosen.size
    return Scale(name, factor, _decimals(estimates, factor))


def _decimals(estimates: Iterable[Estimate], factor: float) -> int:
    """Decimals that show three digits of the smallest mean, at most `MOST_DECIMALS`; 0 for whole numbers."""
    values = [factor * value for one in estimates for value in (one.mean, one.half_width or 0.0)]
    means = [abs(factor * one.mean) for one in estimates if one.mean and math.isfinite(one.mean)]
    if not means or all(value == round(value) for value in values if math.isfinite(value)):
        return 0
    return min(MOST_DECIMALS, max(0, 2 - math.floor(math.log10(min(means)))))
