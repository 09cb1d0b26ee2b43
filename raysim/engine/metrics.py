"""Computes the metrics of a round from its report and its clients' rows. `METRICS` in common/results.py explains them.

Sums are exact until rounded, so the order of rows does not matter. `Progress` has the metrics of all rounds so far.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from raysim.common.results import ClientRow
from raysim.core.algorithm import ClientId
from raysim.engine.records import MemoryReport, RoundReport

Rows = Sequence[ClientRow]
Labels = NDArray[np.int64]
T = TypeVar("T")
_UNITS = 1 << 1074
"""Every float is an integer multiple of 1 / 2^1074, because its denominator divides 2^1074."""


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None without values; NaN or infinite if a value is, or if the sum is too large."""
    return exact_sum(values) / len(values) if values else None


def exact_sum(values: Sequence[float]) -> float:
    """Return the sum, rounded once. `math.fsum` alone raises an error for inf - inf and for sums that are too large."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        return sum(values, 0.0)


def pooled(counts: Iterable[tuple[int | None, int | None]]) -> float | None:
    """Return the accuracy over all clients' samples. counts: (correct, total) of each client; None without samples."""
    known = [(correct or 0, total) for correct, total in counts if total]
    return sum(correct for correct, _ in known) / sum(total for _, total in known) if known else None


class Sum:
    """An exact sum from which values can be removed. It is rounded once, as by `math.fsum`, so order does not matter.

    `math.fsum` itself would need the values of all clients in every round: with 100,000 clients, 100 of them new, the
    metrics of all clients took 78 ms instead of 0.4 ms. `fractions.Fraction` is exact, too, and takes 10 times as long.
    """

    def __init__(self) -> None:
        self.count = 0
        self._units = 0  # the sum of the finite values, in units of 1 / _UNITS
        self._nonfinite: Counter[str] = Counter()  # "inf", "-inf" or "nan" -> number of such values

    def add(self, value: float, times: int = 1) -> None:
        """Add a value `times` times; a negative number of times removes the value."""
        self.count += times
        if not math.isfinite(value):
            self._nonfinite[str(value)] += times
            return
        numerator, denominator = value.as_integer_ratio()
        self._units += times * numerator * (_UNITS // denominator)

    @property
    def total(self) -> float:
        """The sum; infinite or NaN if a value is, or if a float cannot hold the sum."""
        nonfinite = [float(value) for value, times in self._nonfinite.items() if times]
        if nonfinite:
            return exact_sum(nonfinite)
        try:
            return self._units / _UNITS
        except OverflowError:
            return math.inf if self._units > 0 else -math.inf

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return self.total / self.count if self.count else None


class ValueCounts:
    """Counts of distinct values, with statistics of all values. Compact, because many clients share few accuracies."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.times = Counter(values)

    def add(self, value: float, times: int = 1) -> None:
        """Add a value `times` times; a negative number of times removes the value."""
        self.times[value] += times
        if not self.times[value]:
            del self.times[value]

    def __len__(self) -> int:
        return self.times.total()

    def total(self, f: Callable[[float], float] = lambda value: value) -> float:
        """Return the sum of `f` over all values."""
        total = Sum()
        for value, times in self.times.items():
            total.add(f(value), times)
        return total.total

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return self.total() / len(self) if self.times else None

    @property
    def std(self) -> float | None:
        """The standard deviation over the population (divided by n); None without values."""
        middle = self.mean
        return None if middle is None else math.sqrt(self.total(lambda v: (v - middle) ** 2) / len(self))

    @property
    def worst_decile(self) -> float | None:
        """The mean of the smallest tenth of the values, at least one; None without values."""
        worst, left = Sum(), math.ceil(len(self) / 10)
        for value in sorted(self.times):
            worst.add(value, min(left, self.times[value]))
            left -= min(left, self.times[value])
        return worst.mean

    def quantile(self, share: float) -> float | None:
        """Return the quantile at `share`, interpolated between two values; None without values."""
        if not self.times:
            return None
        values = sorted(self.times)
        ends = list(accumulate(self.times[value] for value in values))
        place = (len(self) - 1) * share
        below, above = (values[bisect_right(ends, at)] for at in (math.floor(place), math.ceil(place)))
        return float(np.quantile([below, above], place - math.floor(place)))

    @property
    def jain(self) -> float | None:
        """Jain's index, (sum)^2 / (n * sum of squares): 1/n (one non-zero value) to 1 (equal); None without values."""
        if not self.times:
            return None
        squares = self.total(lambda v: v * v)
        return self.total() ** 2 / (len(self) * squares) if squares else 1.0


class Measured(NamedTuple):
    """The fields of a client's row that metrics need: a fifth of the row, which is kept for each client."""

    accuracy: float | None
    macro_f1: float | None
    balanced_accuracy: float | None
    loss: float | None
    validation: float | None  # accuracy on its validation samples
    correct: int
    total: int  # number of test samples
    took_part: bool  # whether the client has taken part in a round

    @classmethod
    def of(cls, row: ClientRow) -> Measured:
        """Extract the fields from a row."""
        validation = (row.val_correct or 0) / row.val_total if row.val_total else None
        counts = row.correct or 0, row.total or 0
        per_class = row.macro_f1, row.balanced_accuracy
        # Clients are tested before round 1, and later only after they have taken part.
        return cls(row.accuracy, *per_class, row.loss, validation, *counts, took_part=row.round > 0)


class Latest:
    """The last measurement of every client, with sums over all clients.

    A new row replaces the client's earlier one in the sums, so that an update takes time for the participants only.
    """

    def __init__(self, rows: Iterable[ClientRow] = ()) -> None:
        self.measured: dict[int, Measured] = {}
        self.accuracy = ValueCounts()
        self.macro_f1, self.balanced_accuracy, self.loss, self.validation = Sum(), Sum(), Sum(), Sum()
        self.took_part = Sum()
        self.correct = self.total = self.absent = 0
        self.update(rows)

    def update(self, rows: Iterable[ClientRow]) -> None:
        """Replace the earlier rows of these clients by new ones."""
        for row in rows:
            if row.client in self.measured:
                self._count(self.measured[row.client], -1)
            measured = self.measured[row.client] = Measured.of(row)
            self._count(measured, 1)

    def _count(self, measured: Measured, times: int) -> None:
        sums: tuple[tuple[Sum | ValueCounts, float | None], ...] = (
            (self.accuracy, measured.accuracy),
            (self.macro_f1, measured.macro_f1),
            (self.balanced_accuracy, measured.balanced_accuracy),
            (self.loss, measured.loss),
            (self.validation, measured.validation),
            (self.took_part, measured.accuracy if measured.took_part else None),
        )
        for total, value in sums:
            if value is not None:
                total.add(value, times)
        self.absent += times * (not measured.took_part)
        self.correct += times * measured.correct
        self.total += times * measured.total


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

ALL_CLIENTS: Mapping[str, Callable[[Latest], float | None]] = {
    "accuracy/all": lambda latest: latest.accuracy.mean,
    "accuracy/took_part": lambda latest: latest.took_part.mean,
    "accuracy/all_std": lambda latest: latest.accuracy.std,
    "accuracy/all_pooled": lambda latest: pooled([(latest.correct, latest.total)]),
    "accuracy/worst_decile": lambda latest: latest.accuracy.worst_decile,
    "accuracy/min": lambda latest: min(latest.accuracy.times, default=None),
    "accuracy/decile_1": lambda latest: latest.accuracy.quantile(0.1),
    "accuracy/median": lambda latest: latest.accuracy.quantile(0.5),
    "accuracy/decile_9": lambda latest: latest.accuracy.quantile(0.9),
    "accuracy/jain": lambda latest: latest.accuracy.jain,
    "accuracy/macro_f1": lambda latest: latest.macro_f1.mean,
    "accuracy/balanced": lambda latest: latest.balanced_accuracy.mean,
    "accuracy/val": lambda latest: latest.validation.mean,
    "loss/test": lambda latest: latest.loss.mean,
    "engine/absent_clients": lambda latest: latest.absent,
}
"""Metrics of all clients, each with its last measured row."""

CURRENT: Mapping[str, Callable[[Rows], float | None]] = {
    "accuracy/all_current": lambda rows: _current(rows).mean,
    "accuracy/all_current_std": lambda rows: _current(rows).std,
    "accuracy/all_current_pooled": lambda rows: pooled((r.current_correct, r.current_total) for r in rows),
    "accuracy/all_current_worst_decile": lambda rows: _current(rows).worst_decile,
    "accuracy/val_current": lambda rows: mean(
        [(r.current_val_correct or 0) / r.current_val_total for r in rows if r.current_val_total]
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
    latest: Latest | None,
    conditions: Conditions,
    held_out: Collection[ClientId] = (),
) -> dict[str, float | int]:
    """Return the metrics of one round, with the values that the method logged, but without sums over rounds.

    rows: the rows of the round. latest: the last tests of all clients, after this round; None: it had no test.
    held_out: clients that never take part.
    """
    metrics = compute_metrics(PARTICIPANTS, [row for row in rows if row.participated])
    metrics |= {} if latest is None else compute_metrics(ALL_CLIENTS, latest)
    metrics |= current_metrics(rows, held_out) | compute_metrics(TESTS, rows)
    metrics |= compute_metrics(REPORT, report) | compute_metrics(CONDITIONS, conditions)
    return metrics | _logged(report)


def current_metrics(rows: Rows, held_out: Collection[ClientId]) -> dict[str, float | int]:
    """Return the metrics of tests with the server's current message; clients in `held_out` have separate metrics."""
    new = [row for row in rows if row.client in held_out]
    return compute_metrics(CURRENT, [row for row in rows if row.client not in held_out]) | compute_metrics(NEW, new)


def compute_metrics(functions: Mapping[str, Callable[[T], float | int | None]], given: T) -> dict[str, float | int]:
    """Apply every function; return metric -> result, without results that are None."""
    values = {name: f(given) for name, f in functions.items()}
    return {name: value for name, value in values.items() if value is not None}


def _current(rows: Rows) -> ValueCounts:
    return ValueCounts(row.current_accuracy for row in rows if row.current_accuracy is not None)


def _logged(report: RoundReport) -> dict[str, Any]:
    """Return the values that clients logged, as means over the clients that logged them, and those of the server."""
    clients = [client.values for client in report.client_reports.values()]
    names = sorted({name for values in clients for name in values})
    means = {f"client/{name}": mean([values[name] for values in clients if name in values]) for name in names}
    return means | {f"server/{name}": value for name, value in report.server.values.items()}
