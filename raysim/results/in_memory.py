"""A tracker that keeps everything in lists, for tests and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raysim.common.results import ClientRow, RunCard, Status


class MemoryTracker:
    """A tracker that stores everything in memory.

    Attributes:
        card: the argument of `open`.
        rounds: one dict per round: "round" and the metrics.
        clients: all client rows, in the order in which they were logged.
        status: "running" until `close`, then its argument.
        summary: the argument of `close`.
    """

    def __init__(self) -> None:
        self.card: RunCard | None = None
        self.rounds: list[dict[str, float | int]] = []
        self.clients: list[ClientRow] = []
        self.status: Status = "running"
        self.summary: dict[str, object] = {}

    def open(self, card: RunCard) -> None:
        """Store the card."""
        self.card = card

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Store the metrics and client rows of a round."""
        self.rounds.append({"round": t, **values})
        self.clients.extend(clients)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Store the status and the summary."""
        self.status, self.summary = status, dict(summary)

    def series(self, metric: str) -> list[float | int]:
        """Return the values of a metric, for the rounds in which it was measured."""
        return [row[metric] for row in self.rounds if metric in row]
