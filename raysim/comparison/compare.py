"""A comparison: runs in groups that differ in their seed alone, each measure with its interval, and what is unfair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.common.errors import ScenarioError
from raysim.comparison.runs import MEASURES, Run, find_runs
from raysim.comparison.statistics import (
    MIN_SEEDS,
    Estimate,
    estimate,
    interquartile_mean,
    paired_difference,
    probability_of_improvement,
)

if TYPE_CHECKING:
    import pandas as pd

BUDGET = ("rounds", "clients.count", "clients.participation", "training.epochs", "training.batch_size")
"""Keys that say how much work a run does: where they differ, the variant with more of it has an advantage."""


@dataclass(frozen=True)
class Variant:
    """The runs that differ in nothing that decides a result but their seed."""

    keys: Mapping[str, Any]  # those in which the variants of a comparison differ, and their values in this one
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        """What tells it from the others: the method first, then the other keys with their values."""
        parts = [str(self.keys["algorithm.name"])] if "algorithm.name" in self.keys else []
        parts += [f"{_short(key)}={value!s}" for key, value in self.keys.items() if key != "algorithm.name"]
        return " ".join(parts) or str(self.runs[0].keys.get("algorithm.name"))

    @property
    def task(self) -> tuple[str, ...]:
        """The data and the clients that it is tried on, where the variants of the comparison differ in them."""
        return tuple(f"{key}={value!s}" for key, value in self.keys.items() if _is_task(key))

    @property
    def method(self) -> str:
        """Its name without its task."""
        own = [f"{_short(key)}={v!s}" for key, v in self.keys.items() if key != "algorithm.name" and not _is_task(key)]
        return " ".join([str(self.runs[0].keys.get("algorithm.name")), *own])


@dataclass(frozen=True)
class Comparison:
    """Variants in the order of their first runs, and what a reader must know before believing the numbers."""

    variants: Sequence[Variant]
    targets: Sequence[float]
    baseline: str | None = None  # the method that others are compared with, each on its own task
    notes: Sequence[str] = field(default_factory=list)

    @cached_property
    def measured(self) -> Mapping[str, Mapping[str, Mapping[Any, float]]]:
        """Variant -> measure -> (seed, partition digest) -> value."""
        found: dict[str, dict[str, dict[Any, float]]] = {}
        for variant in self.variants:
            of_variant = found.setdefault(variant.name, {})
            for run in variant.runs:
                for measure, value in run.measures(self.targets).items():
                    of_variant.setdefault(measure, {})[run.pair] = value
        return found

    def pairs(self, variant: str) -> list[tuple[int, str]]:
        """The (seed, partition digest) of a variant's runs, each once."""
        (found,) = (one for one in self.variants if one.name == variant)
        return list(dict.fromkeys(run.pair for run in found.runs))

    @property
    def measures(self) -> list[str]:
        """The measures that any run has, in the order of tables."""
        has = {measure for of_variant in self.measured.values() for measure in of_variant}
        reached = [f"{what}_to_{target:g}" for target in self.targets for what in ("rounds", "mib", "gflop")]
        return [measure for measure in [*MEASURES, *reached] if measure in has]

    def estimate(self, variant: str, measure: str) -> Estimate | None:
        """The mean over a variant's seeds; None where no run has the measure."""
        values = self.measured[variant].get(measure)
        return estimate(list(values.values())) if values else None

    def difference(self, variant: str, measure: str) -> Estimate | None:
        """The paired difference to the baseline on the same task, over the seeds and partitions that both have.

        None for the baseline itself, without any such seed, or without a baseline.
        """
        (one,) = (one for one in self.variants if one.name == variant)
        others = [other for other in self.variants if other.method == self.baseline and other.task == one.task]
        if one.method == self.baseline or not others:
            return None
        theirs = self.measured[others[0].name].get(measure, {})
        return paired_difference(self.measured[variant].get(measure, {}), theirs)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row per variant and measure: differing keys, n, mean, interval, difference to the baseline, values."""
        import pandas as pd

        rows = []
        for variant in self.variants:
            for measure in self.measures:
                found = self.estimate(variant.name, measure)
                if found is None:
                    continue
                difference = self.difference(variant.name, measure)
                values = self.measured[variant.name][measure]
                rows.append(
                    {
                        "variant": variant.name,
                        **{key: str(value) for key, value in variant.keys.items()},
                        "measure": measure,
                        "n": found.n,
                        "mean": found.mean,
                        "low": found.low,
                        "high": found.high,
                        "difference": difference and difference.mean,
                        "difference_low": difference and difference.low,
                        "difference_high": difference and difference.high,
                        "pairs": difference.n if difference else 0,
                        "seeds": " ".join(str(seed) for seed, _ in values),
                        "values": " ".join(repr(value) for value in values.values()),
                    }
                )
        return pd.DataFrame(rows)

    def over_tasks(self, measure: str = "last") -> pd.DataFrame | None:
        """Per method over several data sets and partitions: interquartile mean, probability of improvement.

        None with a single data set and partition, or when no two variants differ in their method.
        """
        import pandas as pd

        by_method: dict[str, dict[tuple[str, ...], list[float]]] = {}
        for variant in self.variants:
            values = list(self.measured[variant.name].get(measure, {}).values())
            by_method.setdefault(variant.method, {}).setdefault(variant.task, []).extend(values)
        tasks = sorted({task for of_method in by_method.values() for task in of_method})
        complete = {name: found for name, found in by_method.items() if all(found.get(task) for task in tasks)}
        if len(tasks) < 2 or len(complete) < 2:
            return None
        rows = []
        for name, found in complete.items():
            row: dict[str, Any] = {"method": name, "tasks": len(tasks)}
            row["iqm"] = interquartile_mean([value for task in tasks for value in found[task]])
            if self.baseline in complete and name != self.baseline:
                pairs = [(found[task], complete[self.baseline][task]) for task in tasks]
                row["probability_of_improvement"] = probability_of_improvement(pairs)
            rows.append(row)
        return pd.DataFrame(rows)


def compare(*runs: Path | str, targets: Iterable[float] | None = None, baseline: str | None = None) -> Comparison:
    """Compare runs: groups that differ in their seed alone, each measure with its 95 % interval over seeds.

    runs: run folders, or folders with run folders at any depth. targets: mean accuracies in (0, 1] to which rounds,
    MiB and FLOP are counted; default: the papers' for this data. baseline: the method that others are compared with,
    each on its own data and clients; default: none.

    Raises:
        ScenarioError: no run, a damaged one, a target out of range, or no such baseline.
    """
    found = find_runs(runs)
    if not found:
        raise ScenarioError("compare: no run given; allowed: one or more run folders, or folders with runs in them")
    measured = [run for run in found if run.summary.get("rounds")]
    if not measured:
        raise ScenarioError(f"compare: {found[0].folder} has no round yet, and neither has any other run given")
    chosen = sorted({target for run in measured for target in run.targets}) if targets is None else list(targets)
    for target in chosen:
        if not 0 < target <= 1:
            raise ScenarioError(f"--target: {target:g} given; allowed: an accuracy greater than 0 and at most 1")
    variants = _variants(measured)
    notes = [f"{run.folder}: no round is done yet; left out" for run in found if run not in measured]
    return Comparison(variants, chosen, _baseline(variants, baseline), [*notes, *_notes(variants)])


def _variants(runs: Sequence[Run]) -> list[Variant]:
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(run.deciding.items(), key=str)), []).append(run)
    first = [group[0].deciding for group in groups.values()]
    names = dict.fromkeys(key for deciding in first for key in deciding)
    differing = [key for key in names if len({repr(deciding.get(key)) for deciding in first}) > 1]
    # A method's own settings say nothing that its name does not, unless they differ between runs of that method.
    by_method: dict[Any, list[dict[str, Any]]] = {}
    for deciding in first:
        by_method.setdefault(deciding.get("algorithm.name"), []).append(deciding)

    def tells(key: str, deciding: Mapping[str, Any]) -> bool:
        if not key.startswith("algorithm.") or key == "algorithm.name":
            return key in deciding
        return len({repr(other.get(key)) for other in by_method[deciding.get("algorithm.name")]}) > 1

    return [
        Variant({key: deciding.get(key) for key in differing if tells(key, deciding)}, group)
        for deciding, group in zip(first, groups.values(), strict=True)
    ]


def _baseline(variants: Sequence[Variant], given: str | None) -> str | None:
    methods = list(dict.fromkeys(variant.method for variant in variants))
    if given is not None and given not in methods:
        raise ScenarioError(f"--baseline: {given} given; allowed: {', '.join(methods)}")
    return given


def _notes(variants: Sequence[Variant]) -> list[str]:
    """What makes the comparison less fair or less certain than it looks, a sentence each."""
    found = []
    for key in BUDGET:
        values = {str(run.keys.get(key)) for variant in variants for run in variant.runs}
        if len(values) > 1:
            found.append(f"unequal budgets: {key} is {' or '.join(sorted(values))}")
    for variant in variants:
        cut = [run for run in variant.runs if run.summary.get("rounds", 0) < run.keys.get("rounds", 0)]
        for run in cut:
            done, asked = run.summary.get("rounds"), run.keys.get("rounds")
            found.append(f"{variant.name}, seed {run.seed}: {run.summary.get('status')} after {done} of {asked} rounds")
        seeds = [run.seed for run in variant.runs]
        for seed in sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            found.append(f"{variant.name}, seed {seed}: {seeds.count(seed)} runs; the last one counts")
    every = {run.seed for variant in variants for run in variant.runs}
    for variant in variants:
        if missing := every - {run.seed for run in variant.runs}:
            found.append(f"{variant.name}: no run with seed {', '.join(map(str, sorted(missing)))}")
    if few := [variant.name for variant in variants if len({run.seed for run in variant.runs}) < MIN_SEEDS]:
        count = "no variant has" if len(few) == len(variants) else f"{', '.join(few)}: fewer than"
        found.append(f"{count} {MIN_SEEDS} seeds{'' if len(few) < len(variants) else ' or more'}: no interval is given")
    every_run = [run for variant in variants for run in variant.runs]
    for package in ("raysim", "python", "torch", "numpy"):
        versions = {str(run.summary.get("versions", {}).get(package)) for run in every_run}
        if len(versions) > 1:
            found.append(f"unequal versions: {package} is {' or '.join(sorted(versions))}")
    for seed in sorted(every):
        partitions = {run.summary.get("partition_digest") for run in every_run if run.seed == seed}
        tasks = {tuple(run.keys.get(key) for key in run.keys if _is_task(key)) for run in every_run if run.seed == seed}
        if len(partitions) > len(tasks):
            found.append(f"seed {seed}: runs with the same settings have different partitions, so they are not paired")
    return found


def _is_task(key: str) -> bool:
    """Whether a key says on which data and clients a method is tried."""
    return key.startswith(("data.", "clients."))


def _short(key: str) -> str:
    """The last part of a dotted key; with the one before it where that says more."""
    parts = key.split(".")
    return ".".join(parts[-2:]) if parts[-1] == "name" else parts[-1]
