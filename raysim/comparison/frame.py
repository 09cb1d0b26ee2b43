"""The numbers of a comparison as records, unrounded: rows of `Comparison.frame`, and the output of `compare --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.common.results import Output


@dataclass(frozen=True)
class MeasureRow(Output):
    """A measure of a variant. Accuracies lie between 0 and 1."""

    variant: str
    """name of the variant in tables"""
    method: str
    """the variant's name without data and client settings"""
    keys: Mapping[str, Any]
    """the keys in which the variants differ, and the values of this variant"""
    tuned: str
    """keys and values that a tuning has chosen"""
    measure: str
    """`raysim list measures` explains it"""
    n: int
    """number of values"""
    runs: int
    """number of runs with different seeds or partitions"""
    mean: float | None
    """mean over the seeds; null: a run does not reach the target of this cost"""
    std: float | None
    """standard deviation over the seeds"""
    low: float | None
    """lower end of the 95% confidence interval"""
    high: float | None
    """upper end of the 95% confidence interval"""
    difference: float | None
    """mean paired difference to the baseline"""
    difference_low: float | None
    """lower end of its 95% confidence interval"""
    difference_high: float | None
    """upper end of its 95% confidence interval"""
    pairs: int
    """number of pairs of the difference"""
    p_holm: float | None
    """p-value of the difference, with Holm's correction"""
    published: float | None
    """the value that a paper printed"""
    published_in: str
    """the source of the published value"""
    seeds: Sequence[int]
    """the seed of each value"""
    values: Sequence[float]
    """the value of each run"""

    @property
    def flat(self) -> dict[str, Any]:
        """The row of a table: a column per key, and lists as text."""
        row = dict(vars(self))
        first, keys = {name: row.pop(name) for name in ("variant", "method")}, row.pop("keys")
        lists = {"seeds": " ".join(map(str, self.seeds)), "values": " ".join(map(repr, self.values))}
        return {**first, **{key: str(value) for key, value in keys.items()}, **row, **lists}


@dataclass(frozen=True)
class RunRow(Output):
    """A run of a comparison."""

    variant: str
    """name of its variant"""
    seed: int
    """the scenario's seed"""
    status: str
    """status of the run"""
    digest: str
    """the first 16 digits of the digest of its final state"""
    command: str
    """the command that repeats the run"""
    folder: str
    """the run folder"""


@dataclass(frozen=True)
class TaskRow(Output):
    """A method over all tasks, that is, over all combinations of data and client settings."""

    method: str
    """name of the method in tables"""
    tasks: int
    """number of tasks"""
    iqm: float
    """interquartile mean of the measure `main`"""
    probability_of_improvement: float | None = None
    """probability that a run is better than one of the baseline"""


@dataclass(frozen=True)
class ComparisonData(Output):
    """A comparison of runs."""

    select: str
    """what selects the round of each run: last, val or val_current"""
    main: str
    """the measure of `tasks` and of the figures"""
    baseline: str | None
    """the method with which all other methods are compared"""
    targets: Sequence[float]
    """target accuracies"""
    measures: Sequence[MeasureRow]
    """a row per variant and measure"""
    tasks: Sequence[TaskRow]
    """a row per method, if there are several tasks"""
    runs: Sequence[RunRow]
    """a row per run"""
    notes: Sequence[str]
    """reasons why the numbers are less fair, or less certain, than they look"""
    files: Sequence[Path]
    """tables and figures that were written"""
