"""The main measure of a comparison: of its tested differences, its figures and its summary over tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.comparison.measures import SELECT
from raysim.report.accuracies import DRAWABLE, Accuracy

Chosen = Literal["last", "best", "val", "val_current"]
"""A round: the last that measured an accuracy, that of its maximum, or the one that validation selects, as `SELECT`."""


class DrawnMeasure(NamedTuple):
    """Where a measure of one accuracy comes from."""

    accuracy: Accuracy
    round: Chosen


def _origin(metric: str, round: Chosen) -> DrawnMeasure:
    return DrawnMeasure(DRAWABLE[metric], round)


ORIGINS: Mapping[str, DrawnMeasure] = {
    "last": _origin("accuracy/all", "last"),
    "at_best_val": _origin("accuracy/all", "val"),
    "best": _origin("accuracy/all", "best"),
    "last_current": _origin("accuracy/all_current", "last"),
    "at_best_val_current": _origin("accuracy/all_current", "val_current"),
    "best_current": _origin("accuracy/all_current", "best"),
    "best_participants": _origin("accuracy/participants", "best"),
    "best_global": _origin("accuracy/global", "best"),
    "last_global": _origin("accuracy/global", "last"),
    "val": _origin("accuracy/val", "last"),
    "best_val": _origin("accuracy/val", "val"),
    "val_current": _origin("accuracy/val_current", "last"),
    "best_val_current": _origin("accuracy/val_current", "val_current"),
}
"""Measure -> its accuracy and round, for the measures that figures can follow."""

OF_METRIC: Mapping[str, Mapping[str, str]] = {
    select: {
        accuracy.metric: measure
        for measure, (accuracy, round) in ORIGINS.items()
        if round == select or (select == "last" and measure == "best_participants")
    }
    for select in SELECT
}
"""What selects a run's round -> metric of `--metric` -> the measure that then comes first. Of participants, this is the
greatest accuracy, because each round has other participants.
"""

OVER_CLIENTS = ("worst_decile", "min", "jain", "macro_f1", "balanced", "std")
"""Measures of how the test accuracy of own networks spreads over clients."""


def tuned_metric(selects: Iterable[str]) -> str | None:
    """Return the test accuracy of current networks if their accuracy chose all tuned values, else None.

    selects: the metric that chose, of each tuning.
    """
    chose = set(selects)
    return "accuracy/all_current" if chose and chose <= {"accuracy/val_current", "accuracy/all_current"} else None


def main_measure(metric: str | None, select: str) -> str:
    """Return the measure that a comparison shows first: of this metric, or by default of accuracy/all.

    Raises `ScenarioError` if there is no such measure.
    """
    if metric is None:
        return SELECT[select]
    if metric not in DRAWABLE:
        raise ScenarioError(f"--metric: {metric} given; allowed: {', '.join(DRAWABLE)}")
    if metric not in OF_METRIC[select]:
        others = [f"--select {other}" for other, of_metric in OF_METRIC.items() if metric in of_metric]
        raise ScenarioError(
            f"--metric: {metric} given, but --select {select} only shows {' and '.join(OF_METRIC[select])}; "
            f"give {' or '.join(others)}"
        )
    return OF_METRIC[select][metric]


def first_accuracy(measures: Iterable[str], select: str) -> str | None:
    """Return the measure that comes first if a table has these: the first of one accuracy; None if there is none.

    A measure of how the accuracy of own networks spreads over clients stands for this accuracy.
    """
    for measure in measures:
        if measure in ORIGINS:
            return measure
        if measure in OVER_CLIENTS:
            return SELECT[select]
    return None


def in_words(measure: str) -> str:
    """Return the name of a measure of one accuracy in a sentence."""
    accuracy, round = ORIGINS[measure]
    return {
        "last": f"last {accuracy.phrase}",
        "best": f"greatest {accuracy.phrase}",
        "val": f"{accuracy.phrase} in the round with the best validation accuracy",
        "val_current": f"{accuracy.phrase} in the round with the best validation accuracy",
    }[round]
