"""The tracker that exports a run to Prometheus through Ray's metrics, one value per round and metric.

Ray's agent on the driver's node exports them with Ray's own metrics; `cluster/grafana/raysim.json` plots them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from raysim.common.results import ClientRow, RunCard, Status

TAGS = ("scenario", "algorithm", "run")
SECONDS = [0.01 * 1.5**i for i in range(32)]
"""Upper bounds of the histograms' buckets, from 10 ms to 48 min. Ray exports only the centre of each bucket."""

ACCURACIES = {
    "accuracy/all": "all",
    "accuracy/all_current": "all_current",
    "accuracy/participants": "participants",
    "accuracy/best": "best",
    "accuracy/global": "global",
}
PHASES = {"time/round_s": "round", "time/train_s": "train", "time/aggregate_s": "aggregate"}


class RayMetrics:
    """See `raysim.common.results.Tracker`. Create it only after connecting to Ray."""

    def __init__(self) -> None:
        self._round = Gauge("raysim_round", "Finished rounds.", TAGS)
        self._accuracy = Gauge("raysim_accuracy", "Accuracy, a fraction.", (*TAGS, "over"))
        self._memory = Gauge("raysim_memory_mb", "Memory of the run's processes, in MiB.", (*TAGS, "where"))
        self._bytes = Counter("raysim_bytes", "Bytes of all messages.", (*TAGS, "direction"))
        self._restarts = Counter("raysim_restarts", "Recoveries of the run from a checkpoint.", TAGS)
        self._seconds = {
            name: Histogram(f"raysim_{phase}_seconds", f"Seconds of a round's {phase}.", SECONDS, TAGS)
            for name, phase in PHASES.items()
        }
        self._known_restarts = 0.0

    def open(self, card: RunCard) -> None:
        """Tag all metrics with the run."""
        tags = {"scenario": card.name, "algorithm": card.tags["algorithm"], "run": card.run_id}
        metrics: list[Any] = [self._round, self._accuracy, self._memory, self._bytes, self._restarts]
        for metric in (*metrics, *self._seconds.values()):
            metric.set_default_tags(tags)

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Export round `t`."""
        self._round.set(t)
        for name, group in ACCURACIES.items():
            if values.get(name) is not None:
                self._accuracy.set(values[name], {"over": group})
        for name, where in (("memory/host_mb", "host"), ("memory/gpu_peak_mb", "gpu")):
            if name in values:
                self._memory.set(values[name], {"where": where})
        for direction in ("up", "down"):
            size = values.get(f"comm/{direction}_bytes", 0)
            if size > 0:
                self._bytes.inc(size, {"direction": direction})
        new = values.get("engine/restarts", 0) - self._known_restarts
        if new > 0:
            self._restarts.inc(new)
            self._known_restarts += new
        for name, metric in self._seconds.items():
            if values.get(name, 0) > 0:
                metric.observe(values[name])

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Do nothing, because Ray drops the metrics when the driver ends."""
