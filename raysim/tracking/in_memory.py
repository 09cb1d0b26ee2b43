"""A tracker that keeps everything in lists, for tests and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raysim.common.results import ClientRow, RunCard, Status


class MemoryTracker:
    """The Tracker that only remembers.

    Attributes:
        card: what `open` was given.
        rounds: one dict per round: "round" and the metrics.
        clients: all client rows, in the order they came.
        status: "running" until `close`.
        summary: what `close` was given.
    """

    def __init__(self) -> None:
        self.card: RunCard | None = None
        self.rounds: list[dict[str, float | int]] = []
        self.clients: list[ClientRow] = []
        self.status: Status = "running"
        self.summary: dict[str, object] = {}

    def open(self, card: RunCard) -> None:
        """Remember the card."""
        self.card = card

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Remember a round."""
        self.rounds.append({"round": t, **values})
        self.clients.extend(clients)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Remember how it ended."""
        self.status, self.summary = status, dict(summary)

    def series(self, metric: str) -> list[float | int]:
        """A metric over the rounds in which it was measured."""
        return [row[metric] for row in self.rounds if metric in row]
