"""`published:` of a sweep file: assigns values of papers to cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.comparison.measures import MEASURES, is_measure
from raysim.comparison.published import Published, Row, published, read_rows
from raysim.scenario.yaml_text import shown

KEYS: Mapping[str, type] = {"file": str, "rows": dict, "measures": dict}


@dataclass(frozen=True)
class PublishedEntry:
    """One entry of `published:`: rows of a file of published values, and the measures to compare them with."""

    rows: Sequence[Row]
    measures: Mapping[str, str]  # metric -> measure
    file: str  # the file with the values
    origin: str  # the sweep file

    @classmethod
    def read(cls, raw: Mapping[str, Any], path: Path, place: str) -> PublishedEntry:
        """Parse the mapping at the key `place` of a sweep file. Raises `ScenarioError`."""
        if unknown := sorted(str(key) for key in raw if key not in KEYS):
            text = f"unknown key{suggest(unknown[0], KEYS)}; allowed: {', '.join(KEYS)}"
            raise ScenarioError(text, key=f"{place}.{unknown[0]}", origin=str(path))
        for key, kind in KEYS.items():
            if not isinstance(raw.get(key, {} if key == "measures" else None), kind):
                given = f"{shown(raw[key])} given" if key in raw else "missing"
                text = f"{given}; give {'a CSV file' if kind is str else 'a mapping'}"
                raise ScenarioError(text, key=f"{place}.{key}", origin=str(path))
        patterns = {str(column): str(pattern) for column, pattern in raw["rows"].items()}
        measures = {str(metric): str(measure) for metric, measure in raw.get("measures", {}).items()}
        every = read_rows(path.parent / raw["file"], str(path))
        if wrong := next((column for column in patterns if every and column not in every[0].columns), None):
            text = f"no such column; allowed: {', '.join(every[0].columns)}"
            raise ScenarioError(text, key=f"{place}.rows.{wrong}", origin=str(path))
        rows = [row for row in every if row.matches(patterns)]
        if not rows:
            text = f"no row of {raw['file']} matches all values given here; give values that one of its rows contains"
            raise ScenarioError(text, key=f"{place}.rows", origin=str(path))
        metrics = dict.fromkeys(row.columns["metric"] for row in rows)
        for metric, measure in measures.items():
            if metric not in metrics:
                text = f"the chosen rows have no such metric; allowed: {', '.join(metrics)}"
                raise ScenarioError(text, key=f"{place}.measures.{metric}", origin=str(path))
            if not is_measure(measure):
                text = f"{measure!r} given; allowed: {', '.join(MEASURES)}, or a cost to a target such as rounds_to_0.5"
                raise ScenarioError(text, key=f"{place}.measures.{metric}", origin=str(path))
        return cls(rows, measures, raw["file"], str(path))

    def of(self, labels: Mapping[str, str]) -> list[Published]:
        """The values for a cell with these labels. Raises `ScenarioError` if a value is not a number."""
        values = []
        for row in self.rows:
            if row.matches(labels):
                try:
                    values.append(published(row, self.measures))
                except ValueError:
                    metric, value = row.columns["metric"], row.columns["value"]
                    text = f"line {row.line} of {self.file}: {metric} is {value!r}; give a number"
                    raise ScenarioError(text, key="published", origin=self.origin) from None
        return values


def read_published(raw: Any, path: Path) -> list[PublishedEntry]:
    """Parse a sweep file's `published:`, a mapping or a list of mappings. Raises `ScenarioError`."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        return [PublishedEntry.read(raw, path, "published")]
    for i, one in enumerate(raw):
        if not isinstance(one, dict):
            text = f"{shown(one)} given; give a mapping"
            raise ScenarioError(text, key=f"published.{i}", origin=str(path))
    return [PublishedEntry.read(one, path, f"published.{i}") for i, one in enumerate(raw)]


def published_for(entries: Sequence[PublishedEntry], labels: Mapping[str, str]) -> tuple[Published, ...]:
    """The values of all entries for a cell with these labels.

    Raises `ScenarioError` if a value is not a number, or a measure has two values.
    """
    values = tuple(value for one in entries for value in one.of(labels))
    measures = [one.measure for one in values if one.measure is not None]
    if twice := next((measure for measure in measures if measures.count(measure) > 1), None):
        cell = f"the cell {' '.join(labels.values())!r}"
        text = f"{cell} has more than one published value for the measure {twice}; let `rows` select only one of them"
        raise ScenarioError(text, key="published", origin=entries[0].origin)
    return values
