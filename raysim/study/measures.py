"""Measures of a comparison: a table that says which metric each comes from."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.common.results import METRICS
from raysim.results.accuracies import DRAWABLE

SELECT: Mapping[str, str] = {"last": "last", "val": "at_best_val", "val_current": "at_best_val_current"}
"""How a run's round is selected -> the measure that comparisons show first, test, and summarise over tasks.

With `val`, measures of the last round are those of the round with the greatest validation accuracy, except `val`,
`val_current` and those whose names begin with `last`; and a target counts as reached when the validation accuracy
reaches it. `val_current` is the same with the validation accuracy of current networks.
"""

Way = Literal["last", "best", "val", "val_current", "selected", "round", "sum", "mean", "each", "until", "always"]

WAYS: Mapping[Way, str] = {
    "last": "in the last round that measured it",
    "best": "the greatest value of any round (optimistic for test accuracies, because test samples choose the round)",
    "val": "in the round with the greatest accuracy/val",
    "val_current": "in the round with the greatest accuracy/val_current",
    "selected": "in the last round that measured it, or in the round that `--select` chooses",
    "round": "the first round with the greatest value",
    "sum": "summed over all rounds",
    "mean": "averaged over all rounds",
    "each": "per participant and round, on average",
    "until": "in the first round whose accuracy reaches A (`targets_on` of a sweep file says of which clients)",
    "always": "of a client that takes part in every round until the accuracy reaches A",
}
"""How a measure is computed from a metric's values in all rounds -> a description."""

MIB, GFLOP = 2.0**20, 1e9
UNITS: Mapping[float, str] = {1.0: "", MIB: " in MiB", GFLOP: " in GFLOP (10^9 operations)"}


class Measure(NamedTuple):
    """A measure: its column title, its metric, and how it is computed from the metric."""

    title: str
    metric: str  # a column of rounds.parquet
    way: Way = "last"
    unit: float = 1.0
    short: Collection[str] = ()  # the values of `--select` for which the short table contains the measure

    @property
    def meaning(self) -> str:
        """The measure in words: its metric, how it is computed from the metric, and the meaning of the metric."""
        meaning = f": {METRICS[self.metric]}" if self.metric in METRICS else ""
        return f"{self.metric}{UNITS[self.unit]}, {WAYS[self.way]}{meaning}"


MEASURES: Mapping[str, Measure] = {
    "last": Measure("final accuracy", "accuracy/all", short=["last"]),
    "last_took_part": Measure("final, took part", "accuracy/took_part", short=["last"]),
    "last_pooled": Measure("final pooled", "accuracy/all_pooled"),
    "last_current_pooled": Measure("final current pooled", "accuracy/all_current_pooled"),
    "at_best_val": Measure("test at best val.", "accuracy/all", "val", short=["last", "val"]),
    "best": Measure("best", "accuracy/all", "best"),
    "last_current": Measure("final current", "accuracy/all_current", short=["last"]),
    "at_best_val_current": Measure(
        "current test at best val.", "accuracy/all_current", "val_current", short=["val_current"]
    ),
    "best_current": Measure("best current", "accuracy/all_current", "best"),
    "best_participants": Measure("best part.", "accuracy/participants", "best", short=["last"]),
    "best_global": Measure("best global", "accuracy/global", "best"),
    "last_global": Measure("final global", "accuracy/global"),
    "held_out": Measure("held out", "accuracy/held_out", "selected", short=SELECT),
    "worst_decile": Measure("worst 10%", "accuracy/worst_decile", "selected", short=["last", "val"]),
    "worst_decile_current": Measure(
        "worst 10% current", "accuracy/all_current_worst_decile", "selected", short=["val_current"]
    ),
    "min": Measure("min", "accuracy/min", "selected"),
    "jain": Measure("Jain", "accuracy/jain", "selected"),
    "macro_f1": Measure("macro F1", "accuracy/macro_f1", "selected"),
    "balanced": Measure("balanced", "accuracy/balanced", "selected"),
    "std": Measure("std clients", "accuracy/all_std", "selected"),
    "val": Measure("val.", "accuracy/val"),
    "best_val": Measure("max val.", "accuracy/val", "val", short=["val"]),
    "best_val_round": Measure("max val. round", "accuracy/val", "round", short=["val"]),
    "val_current": Measure("val. current", "accuracy/val_current"),
    "best_val_current": Measure("max val. current", "accuracy/val_current", "val_current", short=["val_current"]),
    "best_val_current_round": Measure("max val. current round", "accuracy/val_current", "round", short=["val_current"]),
    "up_mib": Measure("MiB up", "comm/up_bytes", "each", MIB),
    "down_mib": Measure("MiB down", "comm/down_bytes", "each", MIB),
    "both_mib": Measure("MiB each", "comm/up_bytes + comm/down_bytes", "each", MIB),
    "total_mib": Measure("MiB", "comm/total_bytes", unit=MIB, short=SELECT),
    "gflop": Measure("GFLOP each", "compute/flops", "each", GFLOP),
    "total_gflop": Measure("GFLOP", "compute/total_flops", unit=GFLOP, short=SELECT),
    "virtual_s": Measure("virtual s", "time/virtual_total_s", short=SELECT),
    "dropped": Measure("dropped", "engine/dropped_clients", "sum", short=SELECT),
    "epsilon": Measure("epsilon", "privacy/epsilon", short=SELECT),
    "staleness": Measure("staleness", "async/staleness", "mean", short=SELECT),
}
"""All measures, in the order of tables. A run has the measures of the metrics that it recorded. `TO_TARGET` adds
measures for each target accuracy A, such as `rounds_to_0.5`."""

TO_TARGET: Mapping[str, Measure] = {
    "rounds": Measure("rounds", "round", "until"),
    "mib": Measure("MiB", "comm/total_bytes", "until", MIB),
    "up_mib": Measure("upload MiB", "comm/up_bytes", "always", MIB),
    "gflop": Measure("GFLOP", "compute/total_flops", "until", GFLOP),
    "virtual_s": Measure("virtual s", "time/virtual_total_s", "until"),
}
"""Name of a cost until a target accuracy A is reached -> measure. Column titles end with A, as in `rounds to 50%`."""

ACCURACIES = frozenset(
    name
    for name, of in MEASURES.items()
    if of.metric.startswith("accuracy/") and of.metric != "accuracy/jain" and of.way != "round"
)
"""Measures in [0, 1], which tables show in per cent."""

_TO_TARGET = re.compile(rf"({'|'.join(TO_TARGET)})_to_(?:0\.\d+|1(?:\.0+)?)")

ALL_MEASURES: Mapping[str, str] = {
    **{name: measure.meaning for name, measure in MEASURES.items()},
    **{f"{cost}_to_A": of.meaning for cost, of in TO_TARGET.items()},
}
"""Measure -> meaning. `A` stands for a target accuracy, such as 0.5."""


def meaning_of(name: str) -> str | None:
    """Return the meaning of a measure such as `last`, `rounds_to_A` or `rounds_to_0.5`; None for any other name."""
    cost = _TO_TARGET.fullmatch(name)
    return ALL_MEASURES.get(f"{cost[1]}_to_A" if cost else name)


def title(measure: str) -> str:
    """Return the title of a measure's column, with the measure's own unit."""
    if measure in MEASURES:
        return MEASURES[measure].title
    cost, target = measure.split("_to_")
    return f"{TO_TARGET[cost].title} to {100 * float(target):g}%"


def is_cost_to_target(measure: str) -> bool:
    """Whether a measure is a cost to a target (`TO_TARGET`); a run has such a measure only if it reaches the target."""
    return "_to_" in measure


def main_measure(metric: str | None, select: str) -> str:
    """Return the measure of a metric (default: accuracy/all) that a comparison shows first, tests and draws.

    Of the participants' accuracy, this is the greatest one, because each round has other participants. Raises
    `ScenarioError` if `select` selects no round for the metric.
    """
    if metric is None:
        return SELECT[select]
    shown = {one.metric: name for name, one in MEASURES.items() if one.metric in DRAWABLE and one.way == select}
    if select == "last":
        shown["accuracy/participants"] = "best_participants"
    if metric not in shown:
        raise ScenarioError(f"--metric: {metric} given; allowed with --select {select}: {', '.join(shown)}")
    return shown[metric]
