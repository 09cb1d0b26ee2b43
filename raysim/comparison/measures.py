"""Measures of a comparison: their meanings, the metrics that they come from, and the target accuracies of papers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from raysim.common.errors import ScenarioError

MIB = 2.0**20

TARGETS: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("cifar10", "pathological"): (0.9,),
    ("cifar100", "pathological"): (0.5, 0.7),
    ("cifar10", "dirichlet"): (0.4,),
    ("cifar100", "dirichlet"): (0.09,),
}
"""(data set, partition) -> target mean accuracies for which papers report rounds (FedGH, Table 3; FedRAL, Table 4)."""


class Measure(NamedTuple):
    """How tables and pages show and explain a measure."""

    title: str  # of its columns
    meaning: str


MEASURES: Mapping[str, Measure] = {
    "last": Measure(
        "final accuracy",
        "mean test accuracy of all clients in the last round that measured it; each client counts with the latest test "
        "accuracy of its own network",
    ),
    "last_took_part": Measure(
        "final, took part",
        "`last`, but without the clients that have not taken part in any round yet; only if there are such clients",
    ),
    "last_pooled": Measure(
        "final pooled",
        "test accuracy of all clients in the last round that measured it, pooled over samples: the share of all "
        "clients' test samples that are classified correctly",
    ),
    "last_current_pooled": Measure(
        "final current pooled", "`last_pooled`, each client tested after it received the server's current message"
    ),
    "at_best_val": Measure(
        "test at best val.",
        "mean test accuracy of all clients, as in `last`, in the round with the greatest validation accuracy (`val`)",
    ),
    "best": Measure(
        "best",
        "greatest mean test accuracy of all clients in any round; the test samples choose the round, so this is "
        "optimistic",
    ),
    "last_current": Measure(
        "final current",
        "mean test accuracy of all clients in the last round that measured it, each client tested after it received "
        "the server's current message (needs `evaluation.clients: all`)",
    ),
    "at_best_val_current": Measure(
        "current test at best val.",
        "mean test accuracy of all clients, as in `last_current`, in the round with the greatest validation accuracy "
        "(`val_current`)",
    ),
    "best_current": Measure(
        "best current",
        "greatest mean test accuracy of all clients in any round, each client tested after it received the server's "
        "current message",
    ),
    "best_participants": Measure(
        "best part.",
        "greatest mean test accuracy of the participants in any round; the code released with papers often reports "
        "this number",
    ),
    "best_global": Measure(
        "best global", "greatest mean accuracy of participants' models on the whole published test set, in any round"
    ),
    "last_global": Measure(
        "final global",
        "mean accuracy of participants' models on the whole published test set, in the last round that measured it",
    ),
    "worst_decile": Measure(
        "worst 10%", "mean test accuracy of the worst tenth of the clients, in the last round that measured it"
    ),
    "worst_decile_current": Measure(
        "worst 10% current",
        "mean test accuracy of the worst tenth of the clients in the last round that measured it, each client tested "
        "after it received the server's current message",
    ),
    "min": Measure("min", "lowest test accuracy of any client, in the last round that measured it"),
    "jain": Measure(
        "Jain",
        "Jain's fairness index of the clients' test accuracies in the last round that measured them; 1: all clients "
        "are equally accurate",
    ),
    "macro_f1": Measure(
        "macro F1", "macro-averaged F1 of each client, averaged over all clients, in the last round that measured it"
    ),
    "balanced": Measure(
        "balanced", "balanced accuracy of each client, averaged over all clients, in the last round that measured it"
    ),
    "std": Measure(
        "std clients", "standard deviation of the clients' test accuracies, in the last round that measured them"
    ),
    "val": Measure("val.", "mean validation accuracy of all clients, in the last round that measured it"),
    "best_val": Measure("max val.", "greatest mean validation accuracy of all clients in any round"),
    "best_val_round": Measure("max val. round", "first round that reached `best_val`"),
    "val_current": Measure(
        "val. current",
        "mean validation accuracy of all clients in the last round that measured it, each client evaluated after it "
        "received the server's current message",
    ),
    "best_val_current": Measure(
        "max val. current",
        "greatest mean validation accuracy of all clients in any round, each client evaluated after it received the "
        "server's current message",
    ),
    "best_val_current_round": Measure("max val. current round", "first round that reached `best_val_current`"),
    "up_mib": Measure("MiB up", "MiB that a participant sends per round, on average"),
    "down_mib": Measure("MiB down", "MiB that a participant receives per round, on average"),
    "both_mib": Measure("MiB each", "MiB that a participant sends and receives per round, on average"),
    "total_mib": Measure("MiB", "MiB that all clients sent and received in all rounds"),
    "gflop": Measure(
        "GFLOP each", "GFLOP (10^9 floating-point operations) that a participant computes per round, on average"
    ),
    "total_gflop": Measure(
        "GFLOP", "GFLOP (10^9 floating-point operations) that clients and server computed in all rounds"
    ),
    "virtual_s": Measure("virtual s", "virtual seconds that all rounds took, if the scenario has a section `system`"),
    "dropped": Measure(
        "dropped",
        "how often a selected client did not count, because it dropped out, missed the deadline or finished after "
        "enough other clients, if the scenario has a section `system`",
    ),
}
"""In the order of tables. `TO_TARGET` adds measures for each target accuracy A, such as `rounds_to_0.5`."""

TO_TARGET: Mapping[str, Measure] = {
    "rounds": Measure(
        "rounds",
        "number of rounds until the mean test accuracy reaches A; `targets_on` in the sweep file says which clients "
        "the mean covers",
    ),
    "mib": Measure("MiB", "MiB that all clients sent and received until the round that reached A"),
    "up_mib": Measure(
        "upload MiB", "MiB that one client sends until the accuracy reaches A, if the client takes part in every round"
    ),
    "gflop": Measure(
        "GFLOP",
        "GFLOP (10^9 floating-point operations) that clients and server computed until the round that reached A",
    ),
    "virtual_s": Measure(
        "virtual s", "virtual seconds until the accuracy reached A, if the scenario has a section `system`"
    ),
}
"""Cost until a target accuracy A is reached -> measure; a column's title ends with A, as in `rounds to 50%`."""

SELECT: Mapping[str, str] = {"last": "last", "val": "at_best_val", "val_current": "at_best_val_current"}
"""What selects a run's round -> the measure that comparisons show first, test, and summarise over tasks.

With `val`, measures of the last round are those of the round with the greatest validation accuracy, except `val`,
`val_current` and those whose names begin with `last`; and a target counts as reached when the validation accuracy
reaches it. `val_current` is the same with the validation accuracy of current networks.
"""

Chosen = Literal["last", "best", "val", "val_current", "selected"]
"""A round: the last one that measured a metric, that of its maximum, the one that validation selects, or the one that
the comparison selects for all measures, see `SELECT`."""


class MeasureSource(NamedTuple):
    """The metric that a measure comes from, and its round."""

    metric: str
    round: Chosen


SOURCES: Mapping[str, MeasureSource] = {
    "last": MeasureSource("accuracy/all", "last"),
    "at_best_val": MeasureSource("accuracy/all", "val"),
    "best": MeasureSource("accuracy/all", "best"),
    "last_current": MeasureSource("accuracy/all_current", "last"),
    "at_best_val_current": MeasureSource("accuracy/all_current", "val_current"),
    "best_current": MeasureSource("accuracy/all_current", "best"),
    "best_participants": MeasureSource("accuracy/participants", "best"),
    "best_global": MeasureSource("accuracy/global", "best"),
    "last_global": MeasureSource("accuracy/global", "last"),
    "val": MeasureSource("accuracy/val", "last"),
    "best_val": MeasureSource("accuracy/val", "val"),
    "val_current": MeasureSource("accuracy/val_current", "last"),
    "best_val_current": MeasureSource("accuracy/val_current", "val_current"),
    "last_took_part": MeasureSource("accuracy/took_part", "last"),
    "last_pooled": MeasureSource("accuracy/all_pooled", "last"),
    "last_current_pooled": MeasureSource("accuracy/all_current_pooled", "last"),
    "worst_decile": MeasureSource("accuracy/worst_decile", "selected"),
    "worst_decile_current": MeasureSource("accuracy/all_current_worst_decile", "selected"),
    "min": MeasureSource("accuracy/min", "selected"),
    "jain": MeasureSource("accuracy/jain", "selected"),
    "macro_f1": MeasureSource("accuracy/macro_f1", "selected"),
    "balanced": MeasureSource("accuracy/balanced", "selected"),
    "std": MeasureSource("accuracy/all_std", "selected"),
}
"""Measure -> its source, for measures that are the value of a metric in one round."""

METRICS = (
    "accuracy/all",
    "accuracy/all_current",
    "accuracy/participants",
    "accuracy/global",
    "accuracy/val",
    "accuracy/val_current",
)
"""The metrics that figures can show."""

CURVES = ("all", "all_current", "participants")
"""Clients whose mean test accuracy must reach a target: all clients with their own networks or with the server's
current message, or a round's participants."""

ACCURACIES = frozenset(SOURCES.keys() - {"jain"})
"""Measures in [0, 1], which tables show in per cent."""

_TO_TARGET = re.compile(rf"({'|'.join(TO_TARGET)})_to_(?:0\.\d+|1(?:\.0+)?)")

ALL_MEASURES: Mapping[str, str] = {
    **{name: measure.meaning for name, measure in MEASURES.items()},
    **{f"{cost}_to_A": measure.meaning for cost, measure in TO_TARGET.items()},
}
"""Measure -> meaning. `A` stands for a target accuracy, such as 0.5."""


def meaning_of(name: str) -> str | None:
    """Return the meaning of a measure such as `last`, `rounds_to_A` or `rounds_to_0.5`; None for any other name."""
    cost = _TO_TARGET.fullmatch(name)
    return ALL_MEASURES.get(f"{cost[1]}_to_A" if cost else name)


def canonical(name: str) -> str:
    """Return the name of a column in tables: `rounds_to_0.5` for `rounds_to_0.50`. Other names stay unchanged."""
    return re.sub(r"_to_(\d+(?:\.\d+)?)", lambda target: f"_to_{float(target[1]):g}", name)


def title(measure: str) -> str:
    """Return the title of a measure's column, with the measure's own unit."""
    if measure in MEASURES:
        return MEASURES[measure].title
    cost, target = measure.split("_to_")
    return f"{TO_TARGET[cost].title} to {100 * float(target):g}%"


def is_cost_to_target(measure: str) -> bool:
    """Whether a measure is a cost to a target (`TO_TARGET`); a run has such a measure only if it reaches the target."""
    return "_to_" in measure


def sends_nothing(measure: str, mean: float) -> bool:
    """Return whether the mean of a measure says that no byte was sent, as with Standalone; tables then show a dash."""
    return "mib" in measure and not mean


def is_measure(name: str) -> bool:
    """Return whether `name` is a measure of a comparison."""
    return name in MEASURES or _TO_TARGET.fullmatch(name) is not None


def main_measure(metric: str | None, select: str) -> str:
    """Return the measure that a comparison shows first, tests and draws: of this metric, or by default of accuracy/all.

    Of the participants' accuracy, this is the greatest one, because each round has other participants. Raises
    `ScenarioError` if `select` selects no round for the metric.
    """
    if metric is None:
        return SELECT[select]
    shown = {of: name for name, (of, round) in SOURCES.items() if of in METRICS and round == select}
    if select == "last":
        shown["accuracy/participants"] = "best_participants"
    if metric not in shown:
        raise ScenarioError(f"--metric: {metric} given; allowed with --select {select}: {', '.join(shown)}")
    return shown[metric]


def tuned_metric(selects: Iterable[str]) -> str | None:
    """Return the test accuracy of current networks if their accuracy chose all tuned values, else None.

    selects: the metric that chose, of each tuning.
    """
    chose = set(selects)
    return "accuracy/all_current" if chose and chose <= {"accuracy/val_current", "accuracy/all_current"} else None
