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
    "last": "mean test accuracy of all clients in the last round that measured it; each client counts with the "
    "latest test accuracy of its own network",
    "last_pooled": "test accuracy of all clients in the last round that measured it, pooled over samples: the share of "
    "all clients' test samples that are classified correctly",
    "last_current_pooled": "`last_pooled`, each client tested after it received the server's current message",
    "at_best_val": "`last`, but in the round with the greatest `val` instead of the last round",
    "best": "greatest mean test accuracy of all clients in any round; the test samples choose the round, so this is "
    "optimistic",
    "last_current": "mean test accuracy of all clients in the last round that measured it, each client tested after it "
    "received the server's current message (needs `evaluation.clients: all`)",
    "at_best_val_current": "`last_current`, but in the round with the greatest `val_current` instead of the last round",
    "best_current": "greatest mean test accuracy of all clients in any round, each client tested after it received the "
    "server's current message",
    "best_participants": "greatest mean test accuracy of the participants in any round; the code released with "
    "papers often reports this number",
    "best_global": "greatest mean accuracy of participants' models on the whole published test set, in any round",
    "last_global": "mean accuracy of participants' models on the whole published test set, in the last round that "
    "measured it",
    "worst_decile": "mean test accuracy of the worst tenth of the clients, in the last round that measured it",
    "worst_decile_current": "mean test accuracy of the worst tenth of the clients in the last round that measured it, "
    "each client tested after it received the server's current message",
    "min": "lowest test accuracy of any client, in the last round that measured it",
    "jain": "Jain's fairness index of the clients' test accuracies in the last round that measured them; 1: all "
    "clients are equally accurate",
    "macro_f1": "macro-averaged F1 of each client, averaged over all clients, in the last round that measured it",
    "std": "standard deviation of the clients' test accuracies, in the last round that measured them",
    "val": "mean validation accuracy of all clients, in the last round that measured it",
    "best_val": "greatest mean validation accuracy of all clients in any round",
    "best_val_round": "first round that reached `best_val`",
    "val_current": "mean validation accuracy of all clients in the last round that measured it, each client evaluated "
    "after it received the server's current message",
    "best_val_current": "greatest mean validation accuracy of all clients in any round, each client evaluated after it "
    "received the server's current message",
    "best_val_current_round": "first round that reached `best_val_current`",
    "up_mib": "MiB that a participant sends per round, on average",
    "down_mib": "MiB that a participant receives per round, on average",
    "both_mib": "MiB that a participant sends and receives per round, on average",
    "total_mib": "MiB that all clients sent and received in all rounds",
    "gflop": "GFLOP (10^9 floating-point operations) that a participant computes per round, on average",
    "total_gflop": "GFLOP (10^9 floating-point operations) that clients and server computed in all rounds",
    "virtual_s": "virtual seconds that all rounds took, if the scenario has a section `system`",
    "dropped": "how often a selected client dropped out or was late, if the scenario has a section `system`",
}
"""Measure -> meaning. `TO_TARGET` adds measures for each target accuracy A, such as `rounds_to_0.5`."""

TO_TARGET: Mapping[str, str] = {
    "rounds": "number of rounds until the mean test accuracy reaches A; `targets_on` in the sweep file says which "
    "clients the mean covers",
    "mib": "MiB that all clients sent and received until the round that reached A",
    "up_mib": "MiB that one client sends until the accuracy reaches A, if the client takes part in every round",
    "gflop": "GFLOP (10^9 floating-point operations) that clients and server computed until the round that reached A",
    "virtual_s": "virtual seconds until the accuracy reached A, if the scenario has a section `system`",
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
        "last_pooled",
        "last_current_pooled",
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

ALL_MEASURES: Mapping[str, str] = {**MEASURES, **{f"{cost}_to_A": meaning for cost, meaning in TO_TARGET.items()}}
"""Measure -> meaning. `A` stands for a target accuracy, such as 0.5."""


def meaning_of(name: str) -> str | None:
    """Return the meaning of a measure such as `last`, `rounds_to_A` or `rounds_to_0.5`; None for any other name."""
    cost = _TO_TARGET.fullmatch(name)
    return ALL_MEASURES.get(f"{cost[1]}_to_A" if cost else name)


def canonical(name: str) -> str:
    """Return the name of a measure in tables: `rounds_to_0.5` for `rounds_to_0.50`. Other names stay unchanged."""
    cost = _TO_TARGET.fullmatch(name)
    return f"{cost[1]}_to_{float(name.rpartition('_')[2]):g}" if cost else name


def is_cost_to_target(measure: str) -> bool:
    """Whether a measure is a cost to a target (`TO_TARGET`); a run has such a measure only if it reaches the target."""
    return "_to_" in measure


def is_measure(name: str) -> bool:
    """Whether `name` is a measure of a comparison."""
    return name in MEASURES or _TO_TARGET.fullmatch(name) is not None
