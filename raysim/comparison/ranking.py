"""The best and the second-best variant of a measure: by their means, or where paired tests distinguish them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

from raysim.comparison.compare import Comparison
from raysim.comparison.measures import ACCURACIES, is_cost_to_target, sends_nothing
from raysim.comparison.scale import scales_of
from raysim.comparison.statistics import SIGNIFICANT, holm, paired_difference, paired_p_value

Mark = Literal["best", "second"]
Bold = Literal["significant", "mean"]
"""Which best means are bold: those that are significantly better than all others, or all."""

_RANKED = (
    "Of the costs, only costs to a target are ranked, and only among variants whose runs all reach the target; "
    "variants that send nothing are not ranked by what they send."
)
RULES: Mapping[Bold, str] = {
    "significant": "Bold: the best mean of a column and task, if it is significantly better than every other variant. "
    "Underlined: the second-best mean, if the best is bold and the second is significantly better than every variant "
    f"below it. Significant: p < {SIGNIFICANT:g} in the paired t-test over seeds between two variants of the same "
    f"task, with Holm's correction for all these tests in the column. {_RANKED}",
    "mean": "Bold: the best mean of a column and task. Underlined: the second-best mean. Means that are printed alike "
    f"have the same mark. No test says whether they differ. {_RANKED}",
}
"""Rule -> its explanation."""


def direction(measure: str) -> int:
    """1: a greater value is better; -1: a smaller one; 0: the measure ranks no methods.

    Costs of all rounds rank no methods: a method that sends nothing would be the best.
    """
    if is_cost_to_target(measure) or measure == "std":
        return -1
    return 1 if measure in ACCURACIES or measure == "jain" else 0


def marks(comparison: Comparison, measure: str, bold: Bold = "significant") -> dict[str, Mark]:
    """Variant -> its mark in the column of a measure, as `RULES` say; a variant without a mark is left out."""
    sign = direction(measure)
    if not sign:
        return {}
    tasks: dict[tuple[str, ...], list[str]] = {}
    mean: dict[str, float] = {}
    for variant in comparison.variants:
        found = comparison.estimate(variant.name, measure)
        if found is not None and not sends_nothing(measure, found.mean):
            mean[variant.name] = sign * found.mean
            tasks.setdefault(variant.task, []).append(variant.name)
    if bold == "mean":
        scale = scales_of(comparison, measure).mean
        shown = {name: scale(sign * value) for name, value in mean.items()}
        return {name: mark for names in tasks.values() for name, mark in _by_mean(names, mean, shown).items()}
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


def _by_mean(names: Sequence[str], mean: Mapping[str, float], shown: Mapping[str, str]) -> dict[str, Mark]:
    """The marks of the variants of one task by their means. shown: the means as printed."""
    texts = list(dict.fromkeys(shown[name] for name in sorted(names, key=lambda name: -mean[name])))
    marked: dict[str, Mark] = dict(zip(texts[:2] if len(names) > 1 else [], ("best", "second"), strict=False))
    return {name: marked[shown[name]] for name in names if shown[name] in marked}
