"""The accuracies that figures can draw: their columns in a run folder, and their names on axes and in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Accuracy:
    """A mean accuracy in rounds.parquet and, where a run records them, the values of single clients."""

    metric: str  # the column of rounds.parquet
    kind: str  # the samples: "test accuracy"
    whose: str  # the clients and their networks: "all clients' own networks"
    needs: str  # which runs have this metric: "a run ..."
    network: str = ""  # the network of one client: "own network"
    columns: Sequence[str] = ()  # of clients.parquet: one with accuracies, or those of correct and of all samples
    one_round: bool = False  # whether the clients of one round are its clients; else each client's latest row counts
    std: str = ""  # the metric of its standard deviation over clients
    worst_decile: str = ""  # the metric of its mean over the worst tenth of the clients
    explained: str = ""  # a longer form of `whose`, for sentences; empty: `whose` itself

    @property
    def phrase(self) -> str:
        """Its name in a sentence."""
        return f"{self.kind} of {self.explained or self.whose}"

    @property
    def mean_label(self) -> str:
        """The label of an axis of means over clients, in two lines."""
        return f"mean {self.kind},\n{self.whose}"

    @property
    def client_label(self) -> str:
        """The label of an axis of single clients, in two lines."""
        return f"{self.kind} of a\nclient's {self.network}"


_RECEIVED = "all clients after they received the server's current message"

_ALL = (
    Accuracy(
        "accuracy/all", "test accuracy", "all clients' own networks", "that has tested all clients",
        "own network", ("accuracy",), False, "accuracy/all_std", "accuracy/worst_decile",
    ),
    Accuracy(
        "accuracy/all_current", "test accuracy", "all clients' current networks",
        "with evaluation.clients: all", "current network", ("current_accuracy",), True,
        "accuracy/all_current_std", "accuracy/all_current_worst_decile", _RECEIVED,
    ),
    Accuracy("accuracy/participants", "test accuracy", "participants", "that has tested participants"),
    Accuracy(
        "accuracy/global", "accuracy on the whole test set", "participants",
        "with evaluation.global_test: true",
    ),
    Accuracy(
        "accuracy/val", "validation accuracy", "all clients' own networks",
        "whose clients have validation samples", "own network", ("val_correct", "val_total"),
    ),
    Accuracy(
        "accuracy/val_current", "validation accuracy", "all clients' current networks",
        "whose clients have validation samples, with evaluation.clients: all", "current network",
        ("current_val_correct", "current_val_total"), True, explained=_RECEIVED,
    ),
)  # fmt: skip

DRAWABLE: Mapping[str, Accuracy] = {one.metric: one for one in _ALL}
"""Metric -> accuracy: those that `--metric` chooses from. Own networks are those that clients keep, as they were last
tested. Current networks are copies of them that have received the server's current message.
"""

OWN = DRAWABLE["accuracy/all"]
