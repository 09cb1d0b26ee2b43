"""Computes the metrics of a round from its report and its clients' rows. `METRICS` in common/results.py explains them.

Sums are exact until rounded, so the order of rows does not matter. `Progress` has the metrics of all rounds so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from raysim.common.results import ClientRow
from raysim.core.algorithm import ClientId
from raysim.engine.records import MemoryReport, RoundReport

Rows = Sequence[ClientRow]
Labels = NDArray[np.int64]
T = TypeVar("T")


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, whose sum is rounded once; None without values.

    It is NaN or infinite if a value is, or if the sum is too large: `math.fsum` alone raises an error for such sums.
    """
    if not values:
        return None
    try:
        return math.fsum(values) / len(values)
    except (ValueError, OverflowError):
        return sum(values, 0.0) / len(values)


def pooled(counts: Iterable[tuple[int | None, int | None]]) -> float | None:
    """Return the accuracy over all clients' samples. counts: (correct, total) of each client; None without samples."""
    known = [(correct or 0, total) for correct, total in counts if total]
    return sum(correct for correct, _ in known) / sum(total for _, total in known) if known else None


class Spread:
    """Statistics of values, each of which is None without values. Sums are exact until rounded, as in `mean`."""

    def __init__(self, values: Iterable[float | None]) -> None:
        """values: those of clients; None: a client without one."""
        self.values = sorted(value for value in values if value is not None)

    @property
    def mean(self) -> float | None:
        """The mean."""
        return mean(self.values)

    @property
    def std(self) -> float | None:
        """The standard deviation over the population (divided by n)."""
        middle = mean(self.values)
        if middle is None:
            return None
        return math.sqrt(math.fsum([(value - middle) ** 2 for value in self.values]) / len(self.values))

    @property
    def worst_decile(self) -> float | None:
        """The mean of the smallest tenth of the values, at least one."""
        return mean(self.values[: math.ceil(len(self.values) / 10)])

    def quantile(self, share: float) -> float | None:
        """Return the quantile at `share`, interpolated between two values."""
        return float(np.quantile(self.values, share)) if self.values else None

    @property
    def jain(self) -> float | None:
        """Jain's index, (sum)^2 / (n * sum of squares): 1/n (one non-zero value) to 1 (equal)."""
        if not self.values:
            return None
        squares = math.fsum([value * value for value in self.values])
        return math.fsum(self.values) ** 2 / (len(self.values) * squares) if squares else 1.0


class AllClients:
    """The rows of all clients' last tests, which metrics summarise."""

    def __init__(self, latest: Mapping[ClientId, ClientRow]) -> None:
        self.rows = [*latest.values()]
        self.accuracy = Spread(row.accuracy for row in self.rows)

    def mean(self, of: Callable[[ClientRow], float | None]) -> float | None:
        """Return the mean over the clients that have a value."""
        return mean([value for row in self.rows if (value := of(row)) is not None])


def by_class(label_M: Labels, predicted_M: Labels, num_classes: int) -> tuple[float | None, float | None, list[int]]:
    """Return macro-averaged F1, balanced accuracy, and for each class in the labels the number of correct predictions.

    F1 is 2 TP / (2 TP + FP + FN); the mean is over the classes among labels or predictions. Balanced accuracy is the
    mean of TP / (TP + FN) over the classes among labels. Both are None without samples. Classes are in ascending order.
    """
    right_C = np.bincount(label_M[label_M == predicted_M], minlength=num_classes)
    label_C = np.bincount(label_M, minlength=num_classes)
    both_C = label_C + np.bincount(predicted_M, minlength=num_classes)
    seen_C = both_C > 0
    right_Y, label_Y = right_C[label_C > 0], label_C[label_C > 0]
    if not len(label_M):
        return None, None, []
    return float((2 * right_C[seen_C] / both_C[seen_C]).mean()), float((right_Y / label_Y).mean()), right_Y.tolist()


class Conditions(NamedTuple):
    """Learning rate, duration and memory of a round, which are not in the round's report."""

    lr: float  # the clients' learning rate
    seconds: float  # duration of the whole round, including tests
    memory: MemoryReport  # after the round
    epsilon: float | None = None  # loss of privacy up to this round


PARTICIPANTS: Mapping[str, Callable[[Rows], float | int | None]] = {
    "accuracy/participants": lambda rows: mean([r.accuracy for r in rows if r.accuracy is not None]),
    "accuracy/participants_pooled": lambda rows: pooled((r.correct, r.total) for r in rows),
    "accuracy/participants_before": lambda rows: mean(
        [r.before_accuracy for r in rows if r.before_accuracy is not None]
    ),
    "accuracy/global": lambda rows: mean([r.global_accuracy for r in rows if r.global_accuracy is not None]),
    "loss/train": lambda rows: mean([r.train_loss for r in rows if r.train_loss is not None]),
    "comm/up_bytes": lambda rows: sum(r.up_bytes for r in rows),
    "comm/down_bytes": lambda rows: sum(r.down_bytes for r in rows),
    "comm/up_params": lambda rows: sum(r.up_params for r in rows),
    "comm/down_params": lambda rows: sum(r.down_params for r in rows),
    "compute/flops": lambda rows: math.fsum(r.flops for r in rows),
    "time/train_s": lambda rows: math.fsum(r.train_s for r in rows),
    "engine/participants": len,
}
"""Metrics of the cohort, from its rows. To add a metric, add a function to a table of this file, or to `CUMULATIVE` in
progress.py, and its meaning to `METRICS` in common/results.py."""

ALL_CLIENTS: Mapping[str, Callable[[AllClients], float | None]] = {
    "accuracy/all": lambda latest: latest.accuracy.mean,
    "accuracy/took_part": lambda latest: latest.mean(lambda row: row.accuracy if row.round else None),
    "accuracy/all_std": lambda latest: latest.accuracy.std,
    "accuracy/all_pooled": lambda latest: pooled((row.correct, row.total) for row in latest.rows),
    "accuracy/worst_decile": lambda latest: latest.accuracy.worst_decile,
    "accuracy/min": lambda latest: min(latest.accuracy.values, default=None),
    "accuracy/decile_1": lambda latest: latest.accuracy.quantile(0.1),
    "accuracy/median": lambda latest: latest.accuracy.quantile(0.5),
    "accuracy/decile_9": lambda latest: latest.accuracy.quantile(0.9),
    "accuracy/jain": lambda latest: latest.accuracy.jain,
    "accuracy/macro_f1": lambda latest: latest.mean(lambda row: row.macro_f1),
    "accuracy/balanced": lambda latest: latest.mean(lambda row: row.balanced_accuracy),
    "accuracy/val": lambda latest: latest.mean(lambda row: _share(row.val_correct, row.val_total)),
    "loss/test": lambda latest: latest.mean(lambda row: row.loss),
    "engine/absent_clients": lambda latest: sum(not row.round for row in latest.rows),
}
"""Metrics of all clients, each with the row of its last test: that of round 0 until the client has taken part."""

CURRENT: Mapping[str, Callable[[Rows], float | None]] = {
    "accuracy/all_current": lambda rows: _current(rows).mean,
    "accuracy/all_current_std": lambda rows: _current(rows).std,
    "accuracy/all_current_pooled": lambda rows: pooled((r.current_correct, r.current_total) for r in rows),
    "accuracy/all_current_worst_decile": lambda rows: _current(rows).worst_decile,
    "accuracy/val_current": lambda rows: mean(
        [share for r in rows if (share := _share(r.current_val_correct, r.current_val_total)) is not None]
    ),
    "loss/test_current": lambda rows: mean([r.current_loss for r in rows if r.current_loss is not None]),
}
"""Metrics of the tests of all clients with the server's current message, from the rows of a round."""

NEW: Mapping[str, Callable[[Rows], float | None]] = {"accuracy/held_out": lambda rows: _current(rows).mean}
"""Metrics of the tests with the server's current message, over clients that never take part."""

TESTS: Mapping[str, Callable[[Rows], float | None]] = {
    "time/evaluate_s": lambda rows: math.fsum(r.evaluate_s for r in rows),
}
"""Metrics of all tests of a round, from its rows."""

REPORT: Mapping[str, Callable[[RoundReport], float | int | None]] = {
    "compute/server_flops": lambda report: report.server.flops,
    "time/aggregate_s": lambda report: report.server.seconds,
    "time/virtual_s": lambda report: report.timing.round_s if report.timing else None,
    "async/staleness": lambda report: report.timing.staleness if report.timing else None,
    "engine/failed_clients": lambda report: len(report.failed),
    "engine/dropped_clients": lambda report: report.timing.dropped if report.timing else None,
    "engine/moved_clients": lambda report: report.moved,
}
"""Metrics of the server and of the engine."""

CONDITIONS: Mapping[str, Callable[[Conditions], float | int | None]] = {
    "training/lr": lambda conditions: conditions.lr,
    "time/round_s": lambda conditions: conditions.seconds,
    "privacy/epsilon": lambda conditions: conditions.epsilon,
    "memory/host_mb": lambda conditions: conditions.memory.resident_mb,
    "memory/gpu_peak_mb": lambda conditions: conditions.memory.gpu_peak_mb,
}
"""Metrics of settings, time and memory."""


def round_metrics(
    report: RoundReport,
    rows: Rows,
    latest: Mapping[ClientId, ClientRow] | None,
    conditions: Conditions,
    held_out: Collection[ClientId] = (),
) -> dict[str, float | int]:
    """Return the metrics of one round, with the values that the method logged, but without sums over rounds.

    rows: the rows of the round. latest: the last tests of all clients, after this round; None: it had no test.
    held_out: clients that never take part.
    """
    metrics = compute_metrics(PARTICIPANTS, [row for row in rows if row.participated])
    metrics |= {} if latest is None else all_clients_metrics(latest)
    metrics |= current_metrics(rows, held_out) | compute_metrics(TESTS, rows)
    metrics |= compute_metrics(REPORT, report) | compute_metrics(CONDITIONS, conditions)
    return metrics | _logged(report)


def all_clients_metrics(latest: Mapping[ClientId, ClientRow]) -> dict[str, float | int]:
    """Return the metrics of all clients from the last measurement of each."""
    return compute_metrics(ALL_CLIENTS, AllClients(latest))


def current_metrics(rows: Rows, held_out: Collection[ClientId]) -> dict[str, float | int]:
    """Return the metrics of tests with the server's current message; clients in `held_out` have separate metrics."""
    new = [row for row in rows if row.client in held_out]
    return compute_metrics(CURRENT, [row for row in rows if row.client not in held_out]) | compute_metrics(NEW, new)


def compute_metrics(functions: Mapping[str, Callable[[T], float | int | None]], given: T) -> dict[str, float | int]:
    """Apply every function; return metric -> result, without results that are None."""
    values = {name: f(given) for name, f in functions.items()}
    return {name: value for name, value in values.items() if value is not None}


def _share(correct: int | None, total: int | None) -> float | None:
    return (correct or 0) / total if total else None


def _current(rows: Rows) -> Spread:
    return Spread(row.current_accuracy for row in rows)


def _logged(report: RoundReport) -> dict[str, Any]:
    """Return the values that clients logged, as means over the clients that logged them, and those of the server."""
    clients = [client.values for client in report.client_reports.values()]
    names = sorted({name for values in clients for name in values})
    means = {f"client/{name}": mean([values[name] for values in clients if name in values]) for name in names}
    return means | {f"server/{name}": value for name, value in report.server.values.items()}
