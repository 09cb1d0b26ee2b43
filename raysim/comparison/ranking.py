"""The best and the second-best variant of a measure, where paired tests over seeds distinguish them."""

from __future__ import annotations

import itertools
from typing import Literal

from raysim.comparison.compare import Comparison
from raysim.comparison.measures import ACCURACIES, is_cost_to_target
from raysim.comparison.statistics import SIGNIFICANT, holm, paired_difference, paired_p_value

Mark = Literal["best", "second"]

RULE = (
    "Bold: the best mean of a column and task, if it is significantly better than every other variant. Underlined: "
    "the second-best mean, if the best is bold and the second is significantly better than every variant below it. "
    f"Significant: p < {SIGNIFICANT:g} in the paired t-test over seeds between two variants of the same task, with "
    "Holm's correction for all these tests in the column. Of the costs, only costs to a target are ranked, and only "
    "among variants whose runs all reach the target; variants that send nothing are not ranked by what they send."
)


def direction(measure: str) -> int:
    """1: a greater value is better; -1: a smaller one; 0: the measure ranks no methods.

    Costs of all rounds rank no methods: a method that sends nothing would be the best.
    """
    if is_cost_to_target(measure) or measure == "std":
        return -1
    return 1 if measure in ACCURACIES or measure == "jain" else 0


def marks(comparison: Comparison, measure: str) -> dict[str, Mark]:
    """Variant -> its mark in the column of a measure, as `RULE` says; a variant without a mark is left out."""
    sign = direction(measure)
    if not sign:
        return {}
    tasks: dict[tuple[str, ...], list[str]] = {}
    mean: dict[str, float] = {}
    for variant in comparison.variants:
        found = comparison.estimate(variant.name, measure)
        if found is not None and not ("mib_to_" in measure and not found.mean):
            mean[variant.name] = sign * found.mean
            tasks.setdefault(variant.task, []).append(variant.name)
    p_values: dict[tuple[str, str], float] = {}
    better: set[tuple[str, str]] = set()  # (one, another) of which the first has the better paired mean
    for names in tasks.values():
        for pair in itertools.combinations(names, 2):
            one, another = (comparison.measured[name][measure] for name in pair)
            p, difference = paired_p_value(one, another), paired_difference(one, another)
            if p is not None and difference is not None:
                p_values[pair] = p
                better.add(pair if sign * difference.mean > 0 else (pair[1], pair[0]))
    significant = {pair for pair, p in holm(p_values).items() if p < SIGNIFICANT}

    def beats(one: str, another: str) -> bool:
        return (one, another) in better and bool({(one, another), (another, one)} & significant)

    marked: dict[str, Mark] = {}
    for names in tasks.values():
        best, *others = sorted(names, key=lambda name: -mean[name])
        if others and all(beats(best, other) for other in others):
            marked[best] = "best"
            second, *below = others
            if below and all(beats(second, other) for other in below):
                marked[second] = "second"
    return marked
