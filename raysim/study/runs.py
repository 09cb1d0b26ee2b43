"""Runs in a comparison, finished or not: their settings and measures, read from run folders."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from raysim.common.errors import ScenarioError
from raysim.common.results import Summary
from raysim.results.accuracies import DRAWABLE
from raysim.results.client_rows import last_measured
from raysim.results.load import read_clients, read_rounds, read_summary, rounds_done
from raysim.scenario.parse import flatten
from raysim.scenario.schema import Section, Settings, decides
from raysim.scenario.yaml_text import parse, read_text
from raysim.study.measures import MEASURES, TO_TARGET, Measure
from raysim.study.sweep_card import CellCard, SweepCard


@cache
def _default_keys() -> Mapping[str, Any]:
    """Return the keys that a scenario may omit, with their defaults."""
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    given = {name: one.model_dump(mode="json") for name, one in defaults.items() if isinstance(one, Section)}
    return {**{name: None for name, one in defaults.items() if one is None}, **dict(flatten(given))}


@dataclass(frozen=True)
class RunRecord:
    """A run folder's settings, summary and measures, read once."""

    folder: Path
    summary: Summary
    keys: Mapping[str, Any]  # the resolved scenario by dotted key
    sweep: SweepCard | None = None  # the sweep that the run belongs to
    cell: CellCard | None = None  # None: without a sweep, or if the cell does not count any more
    select: str = "last"  # how the round of the measures is selected, one of `SELECT`

    @classmethod
    def read(cls, folder: Path, sweep: SweepCard | None = None) -> RunRecord:
        """Read a run folder. Raises `ScenarioError` if it is not a run folder or is damaged."""
        summary = read_summary(folder)
        summary["rounds"] = rounds_done(folder, summary)
        path = folder / "resolved.yaml"
        # A key that did not exist yet when the run was made has its default.
        keys = {**_default_keys(), **dict(flatten(parse(read_text(path), str(path))))}
        cell = sweep.cells.get(folder.resolve().parent.name) if sweep else None
        return cls(folder, summary, keys, sweep, cell)

    @cached_property
    def rounds(self) -> pa.Table:
        """The table in `rounds.parquet`."""
        return read_rounds(self.folder)

    @property
    def clients(self) -> pa.Table:
        """The table in `clients.parquet`, read at each access, because all runs' tables may exceed the memory."""
        return read_clients(self.folder)

    @property
    def cell_folder(self) -> Path:
        """The folder that contains the run folder. In a sweep, this is the cell's folder in the sweep's folder."""
        return self.folder.resolve().parent

    @property
    def place(self) -> int:
        """The run's position in its sweep; 0 without a sweep."""
        return list(self.sweep.cells).index(self.cell_folder.name) if self.sweep and self.cell else 0

    @property
    def seed(self) -> int:
        """The scenario's seed."""
        return int(self.keys["seed"])

    @property
    def algorithm(self) -> str:
        """The algorithm's name in the scenario: `fedgh`, or `mine.py:Mine` for a custom method."""
        return str(self.keys.get("algorithm.name"))

    @property
    def method(self) -> str:
        """The algorithm's name in tables; for a custom method, the name of its class."""
        return str(self.summary.get("method") or self.algorithm)

    @property
    def pair(self) -> tuple[int, str]:
        """(seed, digests of data set and partition), which is equal for runs whose clients have the same data.

        Another data set with public data is left out, because Standalone does not use it.
        """
        dataset = self.summary.get("dataset", {}).get("digest")
        return self.seed, f"{dataset} {self.summary.get('partition_digest')}"

    @property
    def deciding(self) -> dict[str, Any]:
        """The scenario's keys that affect the result, except the seed."""
        return {key: value for key, value in self.keys.items() if key != "seed" and decides(key)}

    @property
    def diverged(self) -> int | None:
        """The first round with a NaN or infinite training or test loss; None if all are finite."""
        names = [name for name in ("loss/train", "loss/test") if name in self.rounds.column_names]
        for row in self.rounds.select(["round", *names]).to_pylist():
            if any(row[name] is not None and not math.isfinite(row[name]) for name in names):
                return int(row["round"])
        return None

    def series(self, metric: str) -> pd.Series[float]:
        """Round -> value of a metric, for the rounds with a finite value."""
        if metric not in self.rounds.column_names:
            return pd.Series(dtype=float)
        values = self.rounds[metric].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        series = pd.Series(values, self.rounds["round"].to_numpy())
        return series[np.isfinite(values)]

    def clients_of(self, measure: str) -> pa.Table:
        """Return one row per client, by id: `client`, `model`, and in `accuracy` the client's last value of a measure.

        Empty if clients have no values of their own, or if the round of the measure is not known.
        """
        metric, way = MEASURES[measure].metric, MEASURES[measure].way
        until = None if way == "last" else self._round_of(metric, way)
        clients, columns = self.clients, DRAWABLE[metric].columns
        if not columns or not {*columns} <= {*clients.column_names} or (until is None and way != "last"):
            return clients.slice(0, 0)
        value, *total = (pc.cast(clients[name], pa.float64()) for name in columns)
        if total:
            value = pc.divide(value, pc.if_else(pc.greater(total[0], 0), total[0], None))
        table = clients.select(["round", "client", "model"]).append_column("accuracy", value)
        return last_measured(table if until is None else table.filter(pc.less_equal(table["round"], until)))

    def _round_of(self, metric: str, way: str) -> int | None:
        """Return the round, from 1, of a metric's maximum, or that validation selects; None if it is not known."""
        values = self.series(metric if way in ("best", "round") else f"accuracy/{way}").loc[1:]
        return None if values.empty else int(values.idxmax())

    def measures(self, targets: Sequence[float], targets_on: str = "all") -> dict[str, float]:
        """Measure -> value, for each measure that this run has; a target that it never reaches has no measure.

        targets_on: `all`, `all_current` or `participants`, the clients whose mean test accuracy must reach the targets;
        `val` or `val_current`: the mean validation accuracy must.
        """
        values = {name: self._value(measure) for name, measure in MEASURES.items()}
        # The run recorded this value; it is that of the best round by validation among those with both accuracies.
        values["at_best_val"] = self._value(Measure("", "accuracy/at_best_val"))
        if not self.absent:
            del values["last_took_part"]
        if values["up_mib"] is not None and values["down_mib"] is not None:
            values["both_mib"] = values["up_mib"] + values["down_mib"]
        accuracy = self.series(f"accuracy/{targets_on}").loc[1:]
        for target in targets:
            reached = accuracy.index[accuracy >= target]
            if len(reached):
                first = int(reached[0])
                values |= {f"{cost}_to_{target:g}": self._value(of, first) for cost, of in TO_TARGET.items()}
        return {name: value for name, value in values.items() if value is not None}

    def _value(self, measure: Measure, until: int | None = None) -> float | None:
        """Return a measure, over the rounds up to `until`; None if the run does not have it."""
        values = self.series(measure.metric).loc[:until]
        way = self.select if measure.way == "selected" else measure.way
        if way in ("best", "round", "val", "val_current"):
            chosen = self._round_of(measure.metric, way)
            if way == "round":
                return None if chosen is None else float(chosen)
            values = values[values.index == chosen]
        if way in ("each", "always"):
            values = values.loc[1:]
            count = float(self.series("engine/participants").reindex(values.index, fill_value=0).sum())
            each = float(values.sum()) / count / measure.unit if count else None
            return each and each * (int(values.index[-1]) if way == "always" else 1)
        if values.empty:
            return None
        value = values.sum() if way == "sum" else values.mean() if way == "mean" else values.iloc[-1]
        return float(value) / measure.unit

    @property
    def absent(self) -> int:
        """The number of clients that have not taken part in any round."""
        return int(self._value(Measure("", "engine/absent_clients")) or 0)


def find_runs(paths: Sequence[os.PathLike[str] | str]) -> list[RunRecord]:
    """Find the runs in these paths: run folders, or folders with run folders at any depth, in the order of the paths.

    Raises:
        ScenarioError: a path without a run, or a damaged run.
    """
    runs: dict[Path, RunRecord] = {}
    sweep_of = cache(SweepCard.read)
    for path in map(Path, paths):
        if not (folders := run_folders(path)):
            raise ScenarioError(f"{path}: no run found; give a run folder, or a folder that contains run folders")
        for folder in folders:
            place = folder.resolve()
            runs.setdefault(place, RunRecord.read(folder, sweep_of(place.parent.parent)))
    return list(runs.values())


def counted_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs that have finished a round and whose results count.

    In a sweep's folder, only runs of its present cells count. Trials of a tuning do not count beside other runs. Raises
    `ScenarioError` if no run is left.
    """
    kept = [run for run in runs if run.summary.get("rounds")]
    kept = [run for run in kept if run.cell or run.sweep is None]
    kept = [run for run in kept if not (run.sweep and run.sweep.trials)] or kept
    if not kept:
        text = "no run has finished a round, or none is of a cell that this sweep has now; run the sweep again"
        raise ScenarioError(f"{runs[0].folder.parent}: {text}")
    return kept


def run_folders(path: Path) -> list[Path]:
    """Return the path itself if it is a run folder, else the run folders below it."""
    if (path / "summary.json").exists():
        return [path]
    return sorted(file.parent for file in path.rglob("summary.json"))
