"""Title, unit and digits of a measure's columns, the same in the terminal, Markdown, HTML and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raysim.comparison.compare import Comparison
from raysim.comparison.measures import ACCURACIES, MEASURES, MIB, TO_TARGET
from raysim.comparison.statistics import Estimate, Spread
from raysim.report.figures import OVER

ROUNDING = 1e-12
"""Smaller numbers are errors of rounding: they are shown as 0."""


@dataclass(frozen=True)
class Scale:
    """The unit and the digits of a column."""

    title: str
    factor: float  # a value in the column's unit is this times the measure's
    decimals: int
    unit: str = ""  # of bytes or operations, as in the title

    def __call__(self, value: float, sign: bool = False) -> str:
        """Format a value of the measure; sign: with a plus if it is positive."""
        if abs(value) < ROUNDING:
            value = 0.0
        return f"{self.factor * value:{'+' if sign and value else ''}.{self.decimals}f}"


@dataclass(frozen=True)
class Scales:
    """The scales of a measure's columns. All have one unit; the digits may differ."""

    mean: Scale
    published: Scale
    difference: Scale


def title(measure: str) -> str:
    """A column's title."""
    if measure in MEASURES:
        return MEASURES[measure].title
    cost, target = measure.split("_to_")
    return f"{TO_TARGET[cost].title} to {100 * float(target):g}%"


def scales_of(comparison: Comparison, measure: str) -> Scales:
    """Choose the unit and the digits of a measure's columns: means, published values, differences to the baseline."""
    name = title(measure)
    if measure in ACCURACIES:
        in_per_cent = Scale(name, 100.0, 2)
        return Scales(in_per_cent, in_per_cent, in_per_cent)
    of_means = [comparison.estimate(variant.name, measure) for variant in comparison.variants]
    of_differences = [comparison.difference(variant.name, measure) for variant in comparison.variants]
    papers = [comparison.published(variant.name).get(measure) for variant in comparison.variants]
    means = [one for one in of_means if one is not None]
    differences = [one for one in of_differences if one is not None]
    printed = [Estimate(1, paper.value) for paper in papers if paper is not None and paper.value is not None]
    unit, factor = "", 1.0
    for own, axis, size in (("MiB", "bytes", MIB), ("GFLOP", "operations", 1e9)):
        if own in name:
            unit = own
            if sizes := _sizes([*means, *printed]):
                # The least number is at least 0.1 in this unit, so that three decimals show three of its digits.
                chosen = OVER[axis].unit([size * min(max(sizes), 10 * min(sizes))])
                name, unit, factor = name.replace(own, chosen.name), chosen.name, size / chosen.size

    def scale(estimates: Sequence[Estimate], most: int) -> Scale:
        return Scale(name, factor, _decimals(estimates, factor, most, comparison.spread), unit)

    return Scales(scale(means, 3), scale(printed, 3), scale(differences, 5))


def _sizes(estimates: Iterable[Estimate]) -> list[float]:
    """Absolute values of the means that are finite and not 0."""
    return [abs(one.mean) for one in estimates if math.isfinite(one.mean) and abs(one.mean) >= ROUNDING]


def _decimals(estimates: Sequence[Estimate], factor: float, most: int, spread: Spread) -> int:
    """Decimals that show three digits of the smallest mean, at most `most`; 0 for whole numbers."""
    values = [factor * value for one in estimates for value in (one.mean, one.spread(spread) or 0.0)]
    sizes = _sizes(estimates)
    if not sizes or all(abs(value - round(value)) < 1e-9 for value in values if math.isfinite(value)):
        return 0
    return min(most, max(0, 2 - math.floor(math.log10(factor * min(sizes)))))
