"""The progress of a run over its rounds: totals, best values, and each client's latest test."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from raysim.common.results import ClientRow
from raysim.core.algorithm import ClientId
from raysim.engine.metrics import compute_metrics
from raysim.engine.policies.asynchronous import Flight
from raysim.engine.policies.stopping import Watched
from raysim.engine.records import RoundReport


@dataclass
class Progress:
    """The progress of a run, without the states of clients and server."""

    t: int = -1  # the last completed round; -1: not even the state before round 1 is measured
    latest: dict[ClientId, ClientRow] = field(default_factory=dict)  # the rows of the clients' last tests
    stale: set[ClientId] = field(default_factory=set)  # clients that changed after their last test
    diverged: set[ClientId] = field(default_factory=set)  # clients with NaN or infinity in their last loss or upload
    totals: dict[str, float] = field(default_factory=lambda: {"bytes": 0, "flops": 0.0})
    best: dict[str, float] = field(default_factory=dict)
    best_round: int | None = None
    best_val: float = -1.0  # greatest `accuracy/val` so far
    best_val_round: int | None = None
    up_components: dict[str, int] = field(default_factory=dict)
    down_components: dict[str, int] = field(default_factory=dict)
    final: dict[str, float | int] = field(default_factory=dict)
    watched: Watched | None = None  # the metric that may end the run early
    flight: Flight = Flight()  # uploads of an asynchronous run that have not arrived yet
    ended_early: str = ""  # why the run ended before its last round
    uploads: int = 0
    rejected: int = 0  # number of uploads with NaN or infinity
    failed: int = 0
    client_rounds: int = 0
    restarts: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> seconds so far
    before_s: float = 0.0  # seconds of rounds in earlier processes
    started: float = 0.0

    @property
    def rounds(self) -> int:
        """Number of completed rounds."""
        return max(self.t, 0)

    def facts(self) -> dict[str, Any]:
        """Return the progress as JSON for a checkpoint. `latest` is left out, because it is in `clients.parquet`.

        It is a copy, since the checkpoint is written while the next round is counted.
        """
        kept = {name: copy.deepcopy(value) for name, value in vars(self).items() if name not in NOT_KEPT}
        kept["watched"] = asdict(self.watched) if self.watched else None
        clients = {"stale": sorted(self.stale), "diverged": sorted(self.diverged)}
        flight = {"clock_s": self.flight.clock_s, "arrivals": [[k, *one] for k, one in self.flight.arrivals.items()]}
        return {**kept, **clients, "flight": flight, "before_s": self.elapsed_s()}

    def resume(self, t: int, facts: Mapping[str, Any], latest: Mapping[ClientId, ClientRow]) -> None:
        """Restore the progress after round `t` from the `facts` of a checkpoint."""
        vars(self).update(facts)
        self.watched = Watched(**facts["watched"]) if facts["watched"] else None
        self.stale, self.diverged = set(facts["stale"]), set(facts["diverged"])
        self.t, self.latest, self.flight = t, dict(latest), flight_of(facts)

    def add(self, report: RoundReport, rows: Sequence[ClientRow], metrics: Mapping[str, Any]) -> None:
        """Add the next round to totals and best values. metrics: the result of `round_metrics`."""
        self.take_best(self.t + 1, metrics)
        for client in report.client_reports.values():
            for total, components in (
                (self.up_components, client.up.components),
                (self.down_components, client.down.components),
            ):
                for name, size in components.items():
                    total[name] = total.get(name, 0) + size
        self._take_diverged(report, rows)
        self.uploads += len(report.uploaded)
        self.rejected += len(report.server.rejected)
        self.failed += len(report.failed)
        self.client_rounds += len(report.client_reports)
        self.totals["bytes"] += metrics["comm/up_bytes"] + metrics["comm/down_bytes"]
        self.totals["flops"] += metrics["compute/flops"] + metrics["compute/server_flops"]
        for phase in ("train", "aggregate", "evaluate"):
            self.seconds[phase] = self.seconds.get(phase, 0.0) + metrics[f"time/{phase}_s"]
        if report.timing is not None:
            self.totals["virtual_s"] = self.totals.get("virtual_s", 0.0) + report.timing.round_s
            self.totals["dropped"] = self.totals.get("dropped", 0.0) + report.timing.dropped
            self.flight = report.timing.flight or self.flight

    def cumulative(self, evaluated: bool) -> dict[str, float | int]:
        """Return the metrics over all rounds so far. evaluated: whether the last round tested all clients."""
        return compute_metrics(CUMULATIVE, self) | (self.best if evaluated else {})

    def _take_diverged(self, report: RoundReport, rows: Sequence[ClientRow]) -> None:
        """Update the set of diverged clients from losses and rejected uploads."""
        for row in rows:
            losses = [loss for loss in (row.train_loss, row.loss) if loss is not None]
            if losses and all(math.isfinite(loss) for loss in losses):
                self.diverged.discard(row.client)
            elif losses:
                self.diverged.add(row.client)
        self.diverged.update(report.server.rejected)

    def take_best(self, t: int, values: Mapping[str, float]) -> None:
        """Update the best values with those of round `t`. If rounds are equal, the earlier one stays the best.

        The keys of `best` are their metrics: accuracy/best and its likes, and accuracy/at_best_val.
        """
        for best, source in (
            ("accuracy/best", "accuracy/all"),
            ("accuracy/best_participants", "accuracy/participants"),
            ("accuracy/best_current", "accuracy/all_current"),
        ):
            if source in values and values[source] > self.best.get(best, -1.0):
                self.best[best] = values[source]
                if best == "accuracy/best":
                    self.best_round = t
        if values.get("accuracy/val", -1.0) > self.best_val:
            self.best_val, self.best_val_round = values["accuracy/val"], t
            if "accuracy/all" in values:  # missing if no client has test samples
                self.best["accuracy/at_best_val"] = values["accuracy/all"]

    def elapsed_s(self) -> float:
        """Return the seconds since the first round began, without pauses between processes."""
        return self.before_s + (perf_counter() - self.started if self.started else 0.0)


def flight_of(facts: Mapping[str, Any]) -> Flight:
    """Return the uploads that arrive after the round of a checkpoint with these `facts`."""
    kept = facts["flight"]
    return Flight(kept["clock_s"], {k: (arrival_s, t) for k, arrival_s, t in kept["arrivals"]})


NOT_KEPT = {"t", "latest", "ended_early", "started"}
"""Fields that a checkpoint does not contain: they are in the run folder, derived from others, or of the process."""

CUMULATIVE: Mapping[str, Callable[[Progress], float | int | None]] = {
    "comm/total_bytes": lambda progress: progress.totals["bytes"],
    "compute/total_flops": lambda progress: progress.totals["flops"],
    "time/total_s": lambda progress: progress.elapsed_s(),
    "time/virtual_total_s": lambda progress: progress.totals.get("virtual_s"),
    "engine/restarts": lambda progress: progress.restarts,
}
"""Metrics over all rounds so far, except the best values."""
