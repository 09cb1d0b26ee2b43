"""The accuracies that figures can show: their columns in a run folder, and their names on axes and in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Accuracy:
    """A mean accuracy in rounds.parquet, and the accuracies of single clients if a run records them."""

    metric: str  # the column of rounds.parquet
    kind: str  # kind of samples, as in "test accuracy"
    whose: str  # clients and their networks, as in "all clients' own networks"
    needs: str  # which runs have this metric, as a phrase: "a run ..."
    network: str = ""  # a client's network, as in "own network"
    columns: Sequence[str] = ()  # column of clients.parquet with accuracies, or those with correct and all samples
    std: str = ""  # metric with the standard deviation over clients
    worst_decile: str = ""  # metric with the mean over the worst tenth of the clients
    explained: str = ""  # longer form of `whose` for sentences; empty: `whose`

    @property
    def phrase(self) -> str:
        """The name in a sentence."""
        return f"{self.kind} of {self.explained or self.whose}"

    @property
    def mean_label(self) -> str:
        """The label, in two lines, of an axis with means over clients."""
        return f"mean {self.kind},\n{self.whose}"


_RECEIVED = "all clients after they received the server's current message"

_ALL = (
    Accuracy(
        "accuracy/all", "test accuracy", "all clients' own networks", "that has tested all clients",
        "own network", ("accuracy",), "accuracy/all_std", "accuracy/worst_decile",
    ),
    Accuracy(
        "accuracy/all_current", "test accuracy", "all clients' current networks",
        "with evaluation.clients: all", "current network", ("current_accuracy",),
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
        ("current_val_correct", "current_val_total"), explained=_RECEIVED,
    ),
)  # fmt: skip

DRAWABLE: Mapping[str, Accuracy] = {one.metric: one for one in _ALL}
"""Metric -> accuracy, for the choices of `--metric`. Own networks are the networks that clients keep, as last tested.
Current networks are copies that received the server's current message."""

OWN = DRAWABLE["accuracy/all"]
