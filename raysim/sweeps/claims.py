"""`published:` of a sweep file: which values of a paper belong to which cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.comparison.measures import MEASURES, is_measure
from raysim.comparison.published import Published, Row, published, read_rows
from raysim.scenario.yaml_text import shown

KEYS: Mapping[str, type] = {"file": str, "rows": dict, "measures": dict}


@dataclass(frozen=True)
class Claims:
    """Which published values belong to which cells."""

    rows: Sequence[Row] = ()
    measures: Mapping[str, str] = field(default_factory=dict)  # metric -> measure
    file: str = ""  # with the values
    origin: str = ""  # the sweep's file

    @classmethod
    def read(cls, given: Mapping[str, Any] | None, path: Path) -> Claims:
        """Of a sweep file's `published:`. Raises `ScenarioError`."""
        if given is None:
            return cls()
        for key, kind in KEYS.items():
            if not isinstance(given.get(key, {} if key == "measures" else None), kind):
                allowed = "a CSV file" if kind is str else "a mapping"
                text = f"{shown(given.get(key))} given; allowed: {allowed}"
                raise ScenarioError(text, key=f"published.{key}", origin=str(path))
        if unknown := set(given) - set(KEYS):
            text = f"unknown key; allowed: {', '.join(KEYS)}"
            raise ScenarioError(text, key=f"published.{sorted(map(str, unknown))[0]}", origin=str(path))
        patterns = {str(column): str(pattern) for column, pattern in given["rows"].items()}
        measures = {str(metric): str(measure) for metric, measure in given.get("measures", {}).items()}
        every = read_rows(path.parent / given["file"], str(path))
        if wrong := next((column for column in patterns if every and column not in every[0].columns), None):
            text = f"no such column; allowed: {', '.join(every[0].columns)}"
            raise ScenarioError(text, key=f"published.rows.{wrong}", origin=str(path))
        rows = [row for row in every if row.matches(patterns)]
        if not rows:
            text = f"{given['file']} has no such row; allowed: values of its columns"
            raise ScenarioError(text, key="published.rows", origin=str(path))
        metrics = dict.fromkeys(row.columns["metric"] for row in rows)
        for metric, measure in measures.items():
            if metric not in metrics:
                text = f"these rows have no such metric; allowed: {', '.join(metrics)}"
                raise ScenarioError(text, key=f"published.measures.{metric}", origin=str(path))
            if not is_measure(measure):
                text = f"{measure!r} given; allowed: {', '.join(MEASURES)}, or rounds_to_0.5 and the like"
                raise ScenarioError(text, key=f"published.measures.{metric}", origin=str(path))
        return cls(rows, measures, given["file"], str(path))

    def of(self, labels: Mapping[str, str]) -> tuple[Published, ...]:
        """The values for a cell with these labels. Raises `ScenarioError` on no number, or two for one measure."""
        found: list[Published] = []
        for row in self.rows:
            if row.matches(labels):
                try:
                    found.append(published(row, self.measures))
                except ValueError:
                    metric, value = row.columns["metric"], row.columns["value"]
                    text = f"line {row.line} of {self.file}: {metric} is {value!r}, no number"
                    raise ScenarioError(text, key="published", origin=self.origin) from None
        measures = [one.measure for one in found if one.measure is not None]
        if twice := next((measure for measure in measures if measures.count(measure) > 1), None):
            text = f"the cell {' '.join(labels.values())!r} has two values for {twice}; allowed: one"
            raise ScenarioError(text, key="published", origin=self.origin)
        return tuple(found)
