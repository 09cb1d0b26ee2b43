"""`published` of a sweep file: values of papers, and the measures that they are compared with."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import Field

from raysim.common.errors import ScenarioError
from raysim.scenario.schema import Section
from raysim.study.measures import ACCURACIES, MEASURES, meaning_of

MIB_IN = {"_KB": 1 / 1024, "_MB": 1.0, "_GB": 1024.0}
"""MiB per unit of the byte counts in papers. The papers' numbers show that their KB has 1,024 bytes."""

NOTHING = "-"
"""The text for a value that the paper did not print."""


class PublishedValues(Section):
    """Rows of a file of published values, and the measures to compare them with."""

    file: str
    """A CSV file with the columns `metric` and `value`, and others that identify the experiment."""
    rows: dict[str, Any]
    """column -> its value, or a shell pattern for its value, in the rows to use"""
    measures: dict[str, str] = Field(default_factory=dict)
    """metric of the file -> measure of raysim"""


@dataclass(frozen=True)
class Published:
    """One value of a paper."""

    source: str  # such as "FedSSA, Table 1"
    line: int  # line of the file with the values, from 1
    measure: str | None  # the raysim measure to compare with; None: not compared
    value: float | None  # in the measure's unit; None without a measure, or if the paper printed no value


Rows = Sequence[tuple[Mapping[str, str], Published]]
"""The columns and the value of each row of a file of published values."""


def _matches(columns: Mapping[str, str], patterns: Mapping[str, Any]) -> bool:
    """Return whether every column in the patterns equals its pattern or matches it as a shell pattern."""
    return all(
        columns[name] == str(pattern) or fnmatchcase(columns[name], str(pattern))
        for name, pattern in patterns.items()
        if name in columns
    )


def read_published(entries: Sequence[PublishedValues], path: Path) -> Rows:
    """Read the rows that the entries of the sweep file `path` select. Raises `ScenarioError`."""
    return [row for entry in entries for row in _read(entry, path)]


def _read(entry: PublishedValues, path: Path) -> Rows:
    try:
        with (path.parent / entry.file).open(encoding="utf-8", newline="") as file:
            every = dict(enumerate(csv.DictReader(file), 2))
        rows = {
            line: row for line, row in every.items() if entry.rows.keys() <= row.keys() and _matches(row, entry.rows)
        }
        metrics = dict.fromkeys(row["metric"] for row in rows.values())
    except (OSError, ValueError, LookupError) as error:
        text = f"{entry.file} given ({error!r}); give a CSV file with the columns metric and value"
        raise ScenarioError(text, key="published.file", origin=str(path)) from None
    if not rows:
        text = f"no row of {entry.file} has all of these values; give columns and values of one of its rows"
        raise ScenarioError(text, key="published.rows", origin=str(path))
    for metric, measure in entry.measures.items():
        if metric not in metrics or meaning_of(measure) is None:
            text = (
                f"{measure!r} given; metrics of the chosen rows: {', '.join(metrics)}; measures: {', '.join(MEASURES)}"
            )
            raise ScenarioError(text, key=f"published.measures.{metric}", origin=str(path))
    return [(row, _published(row, line, entry.measures.get(row["metric"]), path)) for line, row in rows.items()]


def _published(row: Mapping[str, str], line: int, measure: str | None, path: Path) -> Published:
    source = ", ".join(row[name] for name in ("paper", "table") if row.get(name))
    metric, text = row["metric"], row["value"]
    if measure is None or text == NOTHING:
        return Published(source, line, measure, None)
    factor = 0.01 if measure in ACCURACIES else 1.0
    if "mib" in measure:
        factor = next((factor for ending, factor in MIB_IN.items() if metric.endswith(ending)), 1.0)
    try:
        return Published(source, line, measure, float(text) * factor)
    except ValueError:
        text = f"the value of {metric} is {text!r}; give a number"
        raise ScenarioError(text, key="published.file", origin=str(path)) from None


def published_for(rows: Rows, labels: Mapping[str, str], path: Path) -> tuple[Published, ...]:
    """Return the values for a cell with these labels. Raises `ScenarioError` if a measure has two values."""
    values = tuple(published for columns, published in rows if _matches(columns, labels))
    measures = [one.measure for one in values if one.measure is not None]
    if twice := next((measure for measure in measures if measures.count(measure) > 1), None):
        cell = f"the cell {' '.join(labels.values())!r}"
        text = f"{cell} has more than one published value for the measure {twice}; let `rows` select only one of them"
        raise ScenarioError(text, key="published", origin=str(path))
    return values
