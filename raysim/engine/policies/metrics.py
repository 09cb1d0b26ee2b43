"""Numbers of a round from the rows of its clients: pure functions, sums in client-id order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from raysim.common.results import ClientRow

Rows = Sequence[ClientRow]
Labels = NDArray[np.int64]


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def std(values: Sequence[float]) -> float | None:
    """The standard deviation over the population (divided by n); None of nothing."""
    middle = mean(values)
    return None if middle is None else math.sqrt(math.fsum((v - middle) ** 2 for v in values) / len(values))


def worst_decile(values: Sequence[float]) -> float | None:
    """The mean of the smallest tenth of the values, at least one; None of nothing."""
    return mean(sorted(values)[: math.ceil(len(values) / 10)])


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share of the values lies, interpolated between two; None of nothing."""
    return float(np.quantile(values, share)) if values else None


def jain(values: Sequence[float]) -> float | None:
    """Jain's index, (sum)^2 / (n * sum of squares): 1 if all values are equal, 1/n if one has all; None of nothing."""
    squares = math.fsum(v * v for v in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else 1.0 if values else None


def by_class(label_M: Labels, predicted_M: Labels, num_classes: int) -> tuple[float | None, list[int]]:
    """Macro-averaged F1, and how many samples were classified rightly of each class among the labels, ascending.

    F1 is 2 TP / (2 TP + FP + FN), its mean is over the classes among labels or predictions; None of nothing.
    """
    right_C = np.bincount(label_M[label_M == predicted_M], minlength=num_classes)
    label_C = np.bincount(label_M, minlength=num_classes)
    both_C = label_C + np.bincount(predicted_M, minlength=num_classes)
    seen_C = both_C > 0
    f1 = float((2 * right_C[seen_C] / both_C[seen_C]).mean()) if len(label_M) else None
    return f1, right_C[label_C > 0].tolist()


def accuracies(rows: Rows) -> list[float]:
    """The measured accuracies; a client without test samples has none."""
    return [row.accuracy for row in rows if row.accuracy is not None]


def validation(rows: Rows) -> float | None:
    """The mean accuracy on validation samples; None if a row was written before raysim measured it."""
    if any(row.val_total is None for row in rows):
        return None
    return mean([(row.val_correct or 0) / row.val_total for row in rows if row.val_total])


PARTICIPANTS: Mapping[str, Callable[[Rows], float | int | None]] = {
    "accuracy/participants": lambda rows: mean(accuracies(rows)),
    "accuracy/global": lambda rows: mean([r.global_accuracy for r in rows if r.global_accuracy is not None]),
    "loss/train": lambda rows: mean([r.train_loss for r in rows if r.train_loss is not None]),
    "comm/up_bytes": lambda rows: sum(r.up_bytes for r in rows),
    "comm/down_bytes": lambda rows: sum(r.down_bytes for r in rows),
    "comm/up_params": lambda rows: sum(r.up_params for r in rows),
    "comm/down_params": lambda rows: sum(r.down_params for r in rows),
    "compute/flops": lambda rows: math.fsum(r.flops for r in rows),
    "time/train_s": lambda rows: math.fsum(r.train_s for r in rows),
    "time/evaluate_s": lambda rows: math.fsum(r.evaluate_s for r in rows),
}
"""Of the cohort. A new metric is a function here or below, and its meaning in `raysim.common.results.METRICS`."""

ALL_CLIENTS: Mapping[str, Callable[[Rows], float | int | None]] = {
    "accuracy/all": lambda rows: mean(accuracies(rows)),
    "accuracy/all_std": lambda rows: std(accuracies(rows)),
    "accuracy/worst_decile": lambda rows: worst_decile(accuracies(rows)),
    "accuracy/min": lambda rows: min(accuracies(rows), default=None),
    "accuracy/decile_1": lambda rows: quantile(accuracies(rows), 0.1),
    "accuracy/median": lambda rows: quantile(accuracies(rows), 0.5),
    "accuracy/decile_9": lambda rows: quantile(accuracies(rows), 0.9),
    "accuracy/jain": lambda rows: jain(accuracies(rows)),
    "accuracy/macro_f1": lambda rows: mean([r.macro_f1 for r in rows if r.macro_f1 is not None]),
    "accuracy/val": validation,
    "loss/test": lambda rows: mean([r.loss for r in rows if r.loss is not None]),
}
"""Of all clients, each with its last measured row."""


def compute_metrics(
    functions: Mapping[str, Callable[[Rows], float | int | None]], rows: Rows
) -> dict[str, float | int]:
    """Apply every function to the rows in client-id order; a metric that is None is left out."""
    ordered = sorted(rows, key=lambda row: row.client)
    found = {name: f(ordered) for name, f in functions.items()}
    return {name: value for name, value in found.items() if value is not None}
