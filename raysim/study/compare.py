"""Comparison of runs: variants with several seeds each, an interval for every measure, and notes on fairness."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.common.errors import ScenarioError
from raysim.results.accuracies import DRAWABLE, Accuracy
from raysim.study.measures import (
    MEASURES,
    TO_TARGET,
    is_cost_to_target,
    main_measure,
)
from raysim.study.notes import missing_cells, notes_on
from raysim.study.published import Published
from raysim.study.runs import RunRecord, counted_runs, find_runs
from raysim.study.statistics import (
    Estimate,
    Spread,
    estimate,
    holm,
    interquartile_mean,
    paired_difference,
    paired_p_value,
    probability_of_improvement,
)
from raysim.study.sweep_card import SweepCard
from raysim.study.variants import Variant, baselines_of, group_runs, with_distinct_names

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Comparison:
    """Variants, in the order of their first runs, and notes on how fair and how certain the numbers are.

    >>> import raysim
    >>> sets = ["rounds=1", "backend=in_process", "name=one"]
    >>> runs = [raysim.run("quickstart", sets=[*sets, f"seed={seed}"], quiet=True) for seed in (1, 2, 3)]
    >>> comparison = raysim.compare("runs/one")
    >>> mean = comparison.estimate(comparison.variants[0].name, "last")
    >>> mean.n, mean.low < mean.mean < mean.high
    (3, True)
    >>> comparison.frame.query("measure == 'total_mib'")["n"].tolist()
    [3]
    """

    variants: Sequence[Variant]
    targets: Sequence[float]
    baseline: str | None = None  # the name of the baseline
    notes: Sequence[str] = field(default_factory=list)  # sentences, each with a reason that may change the conclusion
    targets_on: str = "all"  # which accuracy must reach a target, without the prefix `accuracy/`
    select: str = "last"  # how the round of each run is selected, one of `SELECT`
    main: str = "last"  # the measure for differences, figures and the summary over tasks
    spread: Spread = "interval"  # what ± shows in tables

    def __repr__(self) -> str:
        """Return the table, the legend and the notes, as `raysim compare` prints them."""
        from raysim.study.tables import print_comparison

        file = StringIO()
        print_comparison(self, file)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    @property
    def accuracy(self) -> Accuracy:
        """The accuracy that figures show."""
        return DRAWABLE[MEASURES[self.main].metric]

    @cached_property
    def measured(self) -> Mapping[str, Mapping[str, Mapping[Any, float]]]:
        """Variant -> measure -> (seed, partition digest) -> value."""
        by_variant: dict[str, dict[str, dict[Any, float]]] = {}
        for variant in self.variants:
            of_variant = by_variant.setdefault(variant.name, {})
            for pair, run in variant.counted.items():
                for measure, value in run.measures(self.targets, self.targets_on).items():
                    of_variant.setdefault(measure, {})[pair] = value
        return by_variant

    @cached_property
    def means(self) -> Mapping[str, Mapping[int, Estimate]]:
        """Variant -> round -> the mean of `accuracy` over its runs, for the rounds that all of them measured."""
        import pandas as pd

        means = {}
        for variant in self.variants:
            each = [run.series(self.accuracy.metric) for run in variant.counted.values()]
            table = pd.concat(each, axis="columns", join="inner")
            means[variant.name] = {int(t): estimate(row.tolist()) for t, row in table.iterrows()}
        return means

    def pairs(self, variant: str) -> list[tuple[int, str]]:
        """Return the distinct (seed, partition digest) pairs of a variant's runs."""
        return list(self._by_name[variant].counted)

    def published(self, variant: str) -> Mapping[str, Published]:
        """Measure -> the value that a paper printed for a variant."""
        return self._by_name[variant].published

    @cached_property
    def _by_name(self) -> Mapping[str, Variant]:
        return {variant.name: variant for variant in self.variants}

    @property
    def by_task(self) -> dict[str, Comparison]:
        """Task -> the comparison of the variants with that task, in which a variant has the name of its method."""
        variants_of: dict[str, list[Variant]] = {}
        for variant in self.variants:
            variants_of.setdefault(" ".join(variant.task), []).append(replace(variant, label=variant.method))
        return {task: replace(self, variants=with_distinct_names(variants)) for task, variants in variants_of.items()}

    @cached_property
    def measures(self) -> list[str]:
        """The measures that at least one run or paper has, in the order of a table's columns."""
        available = {measure for of_variant in self.measured.values() for measure in of_variant}
        available |= {measure for variant in self.variants for measure in variant.published}
        reached = [f"{what}_to_{target:g}" for target in self.targets for what in TO_TARGET]
        return [measure for measure in [*MEASURES, *reached] if measure in available]

    def estimate(self, variant: str, measure: str) -> Estimate | None:
        """The mean over a variant's seeds; None if no run has the measure, or if a run does not reach its target.

        A mean cost over only the runs that reach a target would look better the more runs fail to reach it.
        """
        values = self.measured[variant].get(measure)
        return estimate(list(values.values())) if values and self._all_reach(variant, measure) else None

    def reached(self, variant: str, measure: str) -> tuple[int, int]:
        """Return the number of a variant's runs that reach the target of a cost, and the number of all its runs."""
        reaching = self.measured[variant].get(f"rounds_to_{measure.partition('_to_')[2]}", {})
        return len(reaching), len(self.pairs(variant))

    def _all_reach(self, variant: str, measure: str) -> bool:
        """Return whether all runs of a variant reach the target, if the measure is a cost to a target."""
        runs, of = self.reached(variant, measure)
        return not is_cost_to_target(measure) or runs == of

    def difference(self, variant: str, measure: str) -> Estimate | None:
        """Return the paired difference to the baseline over the seeds and partitions that both have; see `_pair`.

        None for the baseline itself, if there is no baseline, if the two share no seed and partition, or if a run of
        either does not reach its target.
        """
        pair = self._pair(variant, measure)
        return paired_difference(*pair) if pair else None

    def _pair(self, variant: str, measure: str) -> tuple[Mapping[Any, float], Mapping[Any, float]] | None:
        """Return a measure's values for a variant and its baseline: that of the same task, or the only baseline."""
        one, baselines = self._by_name[variant], [one for one in self.variants if one.is_baseline]
        others = [other.name for other in baselines if other.task == one.task or len(baselines) == 1]
        if one.is_baseline or not others or not all(self._all_reach(name, measure) for name in (variant, others[0])):
            return None
        return self.measured[variant].get(measure, {}), self.measured[others[0]].get(measure, {})

    @cached_property
    def p_values(self) -> Mapping[str, Mapping[str, float]]:
        """Measure -> variant -> p-value of the difference to the baseline, for variants with at least three pairs.

        p-values are two-sided, from the paired t-test, with Holm's correction for all differences of that measure.
        """
        corrected = {}
        for measure in self.measures:
            pairs = {variant.name: self._pair(variant.name, measure) for variant in self.variants}
            values = {name: paired_p_value(*pair) for name, pair in pairs.items() if pair}
            corrected[measure] = holm({name: p for name, p in values.items() if p is not None})
        return corrected

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row per variant and measure, as in `records`, with a column per key, and lists as text."""
        import pandas as pd

        rows = []
        for record in self.records:
            keys = {key: str(value) for key, value in record["keys"].items()}
            lists = {"seeds": " ".join(map(str, record["seeds"])), "values": " ".join(map(repr, record["values"]))}
            row = {"variant": record["variant"], "method": record["method"], **keys, **record, **lists}
            del row["keys"]
            rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """A row per variant and measure, unrounded; accuracies lie between 0 and 1.

        Entries: variant: its name in tables. method: its name without settings of data and clients. keys: the keys in
        which variants differ, with this variant's values. tuned: keys and values that a tuning has chosen. measure:
        `raysim list measures` explains it. n: number of values. runs: number of runs with different seeds or
        partitions. mean, std: over seeds; None if the measure is a cost to a target, and a run misses it. low, high:
        ends of the 95 % confidence interval. difference, difference_low, difference_high: mean paired difference to the
        baseline, with its interval. pairs: number of pairs. p_holm: the difference's p-value with Holm's correction.
        published, published_in: the value that a paper printed, and its source. seeds, values: of each run.
        """
        return [
            self._record(variant, measure)
            for variant in self.variants
            for measure in self.measures
            if measure in self.measured[variant.name] or is_cost_to_target(measure)
        ]

    def _record(self, variant: Variant, measure: str) -> dict[str, Any]:
        """Return a row of `records`."""
        values = self.measured[variant.name].get(measure, {})
        found, less = self.estimate(variant.name, measure), self.difference(variant.name, measure)
        paper = variant.published.get(measure)
        return {
            "variant": variant.name,
            "method": variant.method,
            "keys": variant.keys,
            "tuned": ", ".join(f"{key}={value}" for key, value in variant.chosen.items()),
            "measure": measure,
            "n": len(values),
            "runs": len(self.pairs(variant.name)),
            **{name: getattr(found, name, None) for name in ("mean", "std", "low", "high")},
            "difference": less.mean if less else None,
            "difference_low": less.low if less else None,
            "difference_high": less.high if less else None,
            "pairs": less.n if less else 0,
            "p_holm": self.p_values[measure].get(variant.name),
            "published": paper.value if paper else None,
            "published_in": paper.source if paper else "",
            "seeds": [seed for seed, _ in values],
            "values": list(values.values()),
        }

    @property
    def runs(self) -> list[dict[str, Any]]:
        """A row per run: variant, seed, status, start of its digest, the command that repeats it, and its folder."""
        return [
            {
                "variant": variant.name,
                "seed": run.seed,
                "status": str(run.summary.get("status")),
                "digest": str(run.summary.get("state_digest") or "")[:16],
                "command": _command(run.folder),
                "folder": str(run.folder.absolute()),
            }
            for variant in self.variants
            for run in variant.runs
        ]

    def over_tasks(self) -> pd.DataFrame | None:
        """Return `tasks` as a data frame; None if it is empty."""
        import pandas as pd

        return pd.DataFrame(self.tasks) if self.tasks else None

    @cached_property
    def tasks(self) -> list[dict[str, Any]]:
        """A row per method over all tasks (data sets and partitions), with results of the measure `main`.

        Entries: method: its name in tables. tasks: number of tasks. iqm: interquartile mean.
        probability_of_improvement: the probability that a run is better than one of the baseline, or None.

        The interquartile mean counts the seeds that a method has on every task: with more runs on
        an easy task than on a hard one, it would be greater. Empty if there are fewer than two tasks, or fewer than two
        methods with such a seed.
        """
        by_method: dict[str, dict[tuple[str, ...], list[tuple[int, float]]]] = {}
        baseline: dict[tuple[str, ...], list[float]] = {}
        for variant in self.variants:
            values = [(seed, value) for (seed, _), value in self.measured[variant.name].get(self.main, {}).items()]
            by_method.setdefault(variant.method, {}).setdefault(variant.task, []).extend(values)
            if variant.is_baseline:
                baseline[variant.task] = [value for _, value in values]
        tasks = sorted({task for of_method in by_method.values() for task in of_method})
        baselines = {variant.method for variant in self.variants if variant.is_baseline}
        rows = []
        for name, by_task in by_method.items():
            seeds = set.intersection(*({seed for seed, _ in by_task.get(task, ())} for task in tasks))
            if not seeds:
                continue
            mean = interquartile_mean([value for task in tasks for seed, value in by_task[task] if seed in seeds])
            better = None
            if name not in baselines and all(baseline.get(task) for task in tasks):
                pairs = [([value for _, value in by_task[task]], baseline[task]) for task in tasks]
                better = probability_of_improvement(pairs)
            rows.append({"method": name, "tasks": len(tasks), "iqm": mean, "probability_of_improvement": better})
        return rows if len(tasks) > 1 and len(rows) > 1 else []


def compare(
    *runs: os.PathLike[str] | str,
    targets: Iterable[float] | None = None,
    baseline: str | None = None,
    select: str = "last",
    metric: str | None = None,
    spread: Spread = "interval",
) -> Comparison:
    """Compare runs: group those that differ only in their seed, and give each measure a 95 % interval over seeds.

    runs: run folders, or folders with run folders at any depth. targets: mean accuracies in (0, 1]; the rounds, MiB
    and FLOP that a run needs to reach them become measures; default: the sweep's. baseline: the method that others are
    compared with, on the same data and clients; default: the sweep's, or none. select: what selects the round of each
    run whose measures count: `last`, its last round, or `val`, the round with the greatest validation accuracy, whose
    mean test accuracy is `at_best_val`; a target then counts as reached when the validation accuracy reaches it;
    `val_current` is the same for current networks (`at_best_val_current`).
    metric: the accuracy that figures show, and that is tested and summarised over tasks: one of `DRAWABLE`; default:
    that of the measure of `select`. spread: what ± shows in tables: `interval`, half of the 95 % confidence interval,
    or `std`, the standard deviation over seeds.

    Raises:
        ScenarioError: no run, a damaged run, an unknown baseline, a metric that no run measured
            or that `select` selects no round for, or a run without the validation accuracy that should select its
            round.

    >>> import raysim
    >>> for method in ("fedgh", "standalone"):
    ...     sets = [f"algorithm.name={method}", "rounds=1", "backend=in_process", "name=two"]
    ...     run = raysim.run("quickstart", sets=sets, quiet=True)
    >>> comparison = raysim.compare("runs/two", baseline="standalone")
    >>> sorted(variant.name for variant in comparison.variants)
    ['fedgh', 'standalone']
    """
    main = main_measure(metric, select)
    measured = _in_order([replace(run, select=select) for run in counted_runs(find_runs(runs))])
    _refuse_unmeasured(measured, select, metric)
    sweep = _agreed(measured)
    # Of targets that column titles show alike, only one is kept.
    targets = list({f"{target:g}": target for target in (sweep.targets or () if targets is None else targets)}.values())
    variants = group_runs(measured)
    wanted = sweep.baseline if baseline is None else baseline
    name, baselines = (None, []) if wanted is None else baselines_of(variants, wanted)
    if baseline is not None and not baselines:
        allowed = dict.fromkeys(one.method for one in variants)
        allowed |= dict.fromkeys(name for one in variants for name in one.run_names)
        raise ScenarioError(f"--baseline: {baseline} given; allowed: {', '.join(allowed)}")
    variants = [replace(one, is_baseline=True) if one in baselines else one for one in variants]
    tunings = list({repr(one): one for variant in variants for one in variant.tunings}.values())
    targets_on = sweep.targets_on if select == "last" else select
    notes = [*missing_cells(measured), *(note for tuning in tunings for note in tuning.notes)]
    notes += notes_on(variants)
    return Comparison(variants, targets, name if baselines else None, notes, targets_on, select, main, spread)


def _refuse_unmeasured(runs: Sequence[RunRecord], select: str, metric: str | None) -> None:
    """Raise `ScenarioError` if a run lacks the accuracy that selects its round, or if no run has the metric."""
    without = [run.folder for run in runs if select != "last" and run.series(f"accuracy/{select}").empty]
    if without:
        text = f"--select: {select} given, but {without[0]} did not measure accuracy/{select}"
        raise ScenarioError(f"{text}; use --select last, or leave out this run")
    if metric is not None and all(run.series(metric).empty for run in runs):
        text = f"--metric: {metric} given, but no run measured this metric; choose a run {DRAWABLE[metric].needs}"
        raise ScenarioError(text)


def _in_order(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Sort runs by sweep, in the order of each sweep's first run; the runs of a sweep keep the order of its file."""
    sweeps = [run.cell_folder.parent if run.sweep else None for run in runs]
    order = {sweep: place for place, sweep in enumerate(dict.fromkeys(sweeps))}
    pairs = sorted(zip(runs, sweeps, strict=True), key=lambda pair: (order[pair[1]], pair[0].place))
    return [run for run, _ in pairs]


def _agreed(runs: Sequence[RunRecord]) -> SweepCard:
    """Return the baseline and the targets, each only if all sweeps of these runs have the same."""
    sweeps = list({run.cell_folder.parent: run.sweep for run in runs if run.sweep}.values())
    agreed = SweepCard("", {})
    for name in ("baseline", "targets", "targets_on"):
        values: list[Any] = [getattr(sweep, name) for sweep in sweeps]
        if values and all(value == values[0] for value in values):
            agreed = replace(agreed, **{name: values[0]})
    return agreed


def _command(folder: Path) -> str:
    """Return the command that repeats a run, with results and MLflow's record in the current folder."""
    scenario = shlex.quote(str(folder.absolute() / "resolved.yaml"))
    # The command omits the tags of a sweep, because MLflow would show the run as another cell of that sweep.
    return f"raysim launch {scenario} --set output=repeated --set 'tracking={{}}'"
