"""Published values of papers, and the measures that they are compared with."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from raysim.common.errors import ScenarioError
from raysim.comparison.measures import ACCURACIES

MIB_IN = {"_KB": 1 / 1024, "_MB": 1.0, "_GB": 1024.0}
"""MiB per unit of papers' byte counts; the papers' numbers show that their KB is 1,024 bytes."""

NOTHING = "-"
"""The text of a missing value: the paper printed none."""


@dataclass(frozen=True)
class Published:
    """One value of a paper."""

    source: str  # such as "FedSSA, Table 1"
    line: int  # line of the file with the values, from 1
    metric: str  # the metric's name in the file
    text: str  # the value as printed
    measure: str | None  # the measure that it is compared with; None: it is not compared
    value: float | None  # in the measure's unit; None without a measure, or if the paper printed no value


@dataclass(frozen=True)
class Row:
    """A row of a file of published values: a metric, its value, and columns that identify the experiment."""

    columns: Mapping[str, str]
    line: int  # line of the file, from 1

    def matches(self, patterns: Mapping[str, str]) -> bool:
        """Whether every column with a pattern equals it, or matches it as a shell pattern."""
        return all(
            self.columns[name] == pattern or fnmatchcase(self.columns[name], pattern)
            for name, pattern in patterns.items()
            if name in self.columns
        )


def read_rows(path: Path, origin: str) -> list[Row]:
    """Read a CSV file with the columns `metric` and `value`, and others that identify the experiment.

    Raises `ScenarioError` if it is not such a file; the error names `origin`, the file that refers to it.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = [Row({name: text or "" for name, text in row.items() if name}, reader.line_num) for row in reader]
    except (OSError, ValueError, csv.Error):  # ValueError: a NUL in the name, or no UTF-8 text
        rows = []
    if not rows or {"metric", "value"} - rows[0].columns.keys():
        text = f"{path.name} given; give a CSV file with the columns metric and value"
        raise ScenarioError(text, key="published.file", origin=origin)
    return rows


def published(row: Row, measures: Mapping[str, str]) -> Published:
    """Convert a row to a published value; `measures` (metric -> measure) says which measure it is compared with.

    Raises `ValueError` if the value has a measure and is not a number.
    """
    columns = row.columns
    source = ", ".join(columns[name] for name in ("paper", "table") if columns.get(name))
    metric, text = columns["metric"], columns["value"]
    measure = measures.get(metric)
    value = None if measure is None or text == NOTHING else float(text) * _unit(metric, measure)
    return Published(source, row.line, metric, text, measure, value)


def _unit(metric: str, measure: str) -> float:
    if measure in ACCURACIES:
        return 0.01
    return next((factor for ending, factor in MIB_IN.items() if metric.endswith(ending) and "mib" in measure), 1.0)


def by_measure(values: Iterable[Published]) -> dict[str, Published]:
    """Measure -> its published value."""
    return {one.measure: one for one in values if one.measure is not None}
