"""Measures of a comparison, their units, and the target accuracies of papers."""

from __future__ import annotations

import re
from collections.abc import Mapping

MIB = 2.0**20

TARGETS: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("cifar10", "pathological"): (0.9,),
    ("cifar100", "pathological"): (0.5, 0.7),
    ("cifar10", "dirichlet"): (0.4,),
    ("cifar100", "dirichlet"): (0.09,),
}
"""(data set, partition) -> target mean accuracies for which papers report rounds (FedGH, Table 3; FedRAL, Table 4)."""

MEASURES: Mapping[str, str] = {
    "last": "mean test accuracy of all clients, each client's own latest network as it was last tested, "
    "in the last round that measured it",
    "at_best_val": "mean test accuracy of all clients, measured likewise, in the round with the greatest validation "
    "accuracy",
    "best": "the greatest mean test accuracy of all clients, chosen by the test samples themselves",
    "last_current": "mean test accuracy of all clients with the server's current message (`evaluation.clients: all`), "
    "in the last round that measured it",
    "at_best_val_current": "mean test accuracy of all clients, measured likewise, in the round with the greatest "
    "validation accuracy of the same networks",
    "best_current": "the greatest mean test accuracy of all clients with the server's current message",
    "best_participants": "the greatest mean test accuracy of a round's participants, as the papers' codes report",
    "best_global": "the greatest mean accuracy of participants' models on the whole published test set",
    "last_global": "the same in the last round that measured it",
    "worst_decile": "mean accuracy of the worst tenth of the clients, in the last round that measured it",
    "worst_decile_current": "mean accuracy of the worst tenth of the clients with the server's current message, "
    "likewise",
    "min": "the least accuracy of a client, in that round",
    "jain": "Jain's fairness index of the accuracy over clients, in that round: 1 if all have the same",
    "macro_f1": "mean over clients of their macro-averaged F1, in that round",
    "std": "standard deviation of the accuracy over clients, in that round",
    "val": "mean validation accuracy of all clients, in the last round that measured it",
    "best_val": "the greatest mean validation accuracy of all clients after a round",
    "best_val_round": "the first round with that validation accuracy",
    "val_current": "mean validation accuracy of all clients with the server's current message, in the last round that "
    "measured it",
    "best_val_current": "the greatest mean validation accuracy of all clients with the server's current message",
    "best_val_current_round": "the first round with that validation accuracy",
    "up_mib": "MiB that a participant sends per round, on average",
    "down_mib": "MiB that a participant receives per round, on average",
    "both_mib": "MiB of a participant per round in both directions, on average",
    "total_mib": "MiB in both directions, of all clients and rounds",
    "gflop": "10^9 floating-point operations of a participant per round, on average",
    "total_gflop": "10^9 operations of clients and server, of all rounds",
    "virtual_s": "virtual seconds of all rounds, where the scenario has `system`",
    "dropped": "how often a selected client dropped out or was late, where the scenario has `system`",
}
"""Measure -> meaning. `TO_TARGET` adds measures for each target accuracy A, such as `rounds_to_0.5`."""

TO_TARGET: Mapping[str, str] = {
    "rounds": "rounds until the mean test accuracy is A, of all clients or of those that `targets_on` names",
    "mib": "MiB in both directions, of all clients until then",
    "up_mib": "MiB that a client sends until then that takes part in every round",
    "gflop": "10^9 operations of clients and server until then",
    "virtual_s": "virtual seconds until then, where the scenario has `system`",
}

SELECT: Mapping[str, str] = {"last": "last", "val": "at_best_val", "val_current": "at_best_val_current"}
"""What selects a run's round -> the measure that comparisons show first, test, and summarise over tasks.

With `val`, measures of the last round are those of the round with the greatest validation accuracy, except `last`,
`last_current`, `last_global`, `val` and `val_current`; and a target counts as reached when the validation accuracy
reaches it. `val_current` is the same with the validation accuracy of current networks.
"""

CURVES = ("all", "all_current", "participants")
"""Clients whose mean test accuracy must reach a target: all clients with their own networks or with the server's
current message, or a round's participants."""

ACCURACIES = frozenset(
    {
        "last",
        "at_best_val",
        "best",
        "last_current",
        "at_best_val_current",
        "best_current",
        "best_participants",
        "best_global",
        "last_global",
        "worst_decile",
        "worst_decile_current",
        "min",
        "macro_f1",
        "std",
        "val",
        "best_val",
        "val_current",
        "best_val_current",
    }
)
"""Measures in [0, 1], which tables show in per cent."""


_TO_TARGET = re.compile(rf"({'|'.join(TO_TARGET)})_to_0\.\d+")


def is_cost_to_target(measure: str) -> bool:
    """Whether a measure is a cost to a target (`TO_TARGET`); a run has such a measure only if it reaches the target."""
    return "_to_" in measure


def is_measure(name: str) -> bool:
    """Whether `name` is a measure of a comparison."""
    return name in MEASURES or _TO_TARGET.fullmatch(name) is not None
