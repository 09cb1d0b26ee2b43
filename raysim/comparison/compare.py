"""Comparison of runs: variants with several seeds each, an interval for every measure, and notes on fairness."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from raysim.common.errors import ScenarioError
from raysim.comparison.frame import flat, records
from raysim.comparison.main_measure import ORIGINS, main_measure, tuned_metric
from raysim.comparison.measures import MEASURES, SELECT, TO_TARGET, is_cost_to_target
from raysim.comparison.notes import missing_cells, notes_on
from raysim.comparison.published import Published, by_measure
from raysim.comparison.runs import RunRecord, find_runs, without_outdated
from raysim.comparison.statistics import (
    Estimate,
    Spread,
    estimate,
    holm,
    interquartile_mean,
    paired_difference,
    paired_p_value,
    probability_of_improvement,
)
from raysim.comparison.sweep_card import SweepCard, TuningCard
from raysim.comparison.variants import Variant, baselines_of, group_runs, with_distinct_names
from raysim.report.accuracies import DRAWABLE, Accuracy
from raysim.report.units import plural

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
    notes: Sequence[str] = field(default_factory=list)  # reasons that may change the conclusion
    targets_on: str = "all"  # what must reach a target: the mean accuracy of clients, one of `CURVES`, or `select`
    select: str = "last"  # what selects the round whose measures count, one of `SELECT`
    main: str = "last"  # the measure, one of `ORIGINS`, of differences, of figures, and of the summary over tasks
    spread: Spread = "interval"  # what ± shows in tables

    def __repr__(self) -> str:
        """Return the table, the legend and the notes, as `raysim compare` prints them."""
        from raysim.comparison.formats import print_table

        file = StringIO()
        print_table(self, file)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    @property
    def accuracy(self) -> Accuracy:
        """The accuracy that figures show."""
        return ORIGINS[self.main].accuracy

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
        means = {}
        for variant in self.variants:
            runs, by_round = variant.counted.values(), dict[int, list[float]]()
            for run in runs:
                for t, value in zip(*run.series(self.accuracy.metric), strict=True):
                    by_round.setdefault(int(t), []).append(float(value))
            whole = {t: values for t, values in sorted(by_round.items()) if len(values) == len(runs)}
            means[variant.name] = {t: estimate(values) for t, values in whole.items()}
        return means

    def pairs(self, variant: str) -> list[tuple[int, str]]:
        """Return the distinct (seed, partition digest) pairs of a variant's runs."""
        return list(self._by_name[variant].counted)

    def published(self, variant: str) -> Mapping[str, Published]:
        """Measure -> the value that a paper printed for a variant."""
        return by_measure(self._by_name[variant].published)

    @cached_property
    def _by_name(self) -> Mapping[str, Variant]:
        return {variant.name: variant for variant in self.variants}

    @property
    def by_task(self) -> dict[str, Comparison]:
        """Task -> a comparison of the variants with that task, named by their methods."""
        variants_of: dict[str, list[Variant]] = {}
        for variant in self.variants:
            variants_of.setdefault(" ".join(variant.task), []).append(replace(variant, label=variant.method))
        return {task: replace(self, variants=with_distinct_names(variants)) for task, variants in variants_of.items()}

    @cached_property
    def measures(self) -> list[str]:
        """The measures that at least one run or paper has, in the order of tables."""
        available = {measure for of_variant in self.measured.values() for measure in of_variant}
        available |= {measure for variant in self.variants for measure in by_measure(variant.published)}
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
        """Return the paired difference to the baseline, see `_pair`, over the seeds and partitions that both have.

        None for the baseline itself, if there is no baseline, if the two share no seed and partition, or if a run of
        either does not reach its target.
        """
        pair = self._pair(variant, measure)
        return paired_difference(*pair) if pair else None

    def _pair(self, variant: str, measure: str) -> tuple[Mapping[Any, float], Mapping[Any, float]] | None:
        """Return a measure's values for a variant and for the baseline: the one on the same task, or the only one."""
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
        """A row per variant and measure: differing keys, n, mean, spread, difference to the baseline, values."""
        import pandas as pd

        return pd.DataFrame([flat(record) for record in records(self)])

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One row per run, with its folder, its digest and the command that repeats it."""
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
        """One row per method over all tasks (data sets and partitions): interquartile mean, probability of improvement.

        Both are of `main`. The interquartile mean counts the seeds that a method has on every task: with more runs on
        an easy task than on a hard one, it would be greater. None if there are fewer than two tasks, or fewer than two
        methods with such a seed.
        """
        import pandas as pd

        by_method: dict[str, dict[tuple[str, ...], list[tuple[int, float]]]] = {}
        baseline: dict[tuple[str, ...], list[float]] = {}
        for variant in self.variants:
            values = [(seed, value) for (seed, _), value in self.measured[variant.name].get(self.main, {}).items()]
            by_method.setdefault(variant.method, {}).setdefault(variant.task, []).extend(values)
            if variant.is_baseline:
                baseline[variant.task] = [value for _, value in values]
        tasks = sorted({task for of_method in by_method.values() for task in of_method})
        seeds = {
            name: set.intersection(*({seed for seed, _ in by_task.get(task, ())} for task in tasks))
            for name, by_task in by_method.items()
        }
        complete = {name: by_task for name, by_task in by_method.items() if seeds[name]}
        if len(tasks) < 2 or len(complete) < 2:
            return None
        baselines = {variant.method for variant in self.variants if variant.is_baseline}
        rows = []
        for name, by_task in complete.items():
            row: dict[str, Any] = {"method": name, "tasks": len(tasks)}
            row["iqm"] = interquartile_mean(
                [value for task in tasks for seed, value in by_task[task] if seed in seeds[name]]
            )
            if name not in baselines and all(baseline.get(task) for task in tasks):
                pairs = [([value for _, value in by_task[task]], baseline[task]) for task in tasks]
                row["probability_of_improvement"] = probability_of_improvement(pairs)
            rows.append(row)
        return pd.DataFrame(rows)


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
    and FLOP that a run needs to reach them become measures; default: the sweep's targets, or the papers' for this
    data. baseline: the method that others are compared with, on the same data and clients; default: the sweep's, or
    none. select: what selects the round of each run whose measures count: `last`, its last round, or `val`, the round
    with the greatest validation accuracy, whose mean test accuracy is `at_best_val`; a target then counts as reached
    when the validation accuracy reaches it; `val_current` is the same for current networks (`at_best_val_current`).
    metric: the accuracy that figures show, and that is tested and summarised over tasks: one of `DRAWABLE`; default:
    accuracy/all, or accuracy/all_current if current networks chose the tuned values of all runs. spread: what ± shows
    in tables: `interval`, half of the 95 % confidence interval, or `std`, the standard deviation over seeds.

    Raises:
        ScenarioError: no run, a damaged run, a target out of range, an unknown baseline, a metric that no run measured
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
    if select not in SELECT:
        raise ScenarioError(f"--select: {select} given; allowed: {', '.join(SELECT)}")
    if spread not in get_args(Spread):
        raise ScenarioError(f"spread: {spread} given; allowed: {', '.join(get_args(Spread))}")
    main = main_measure(metric, select)
    all_runs, outdated = without_outdated(find_runs(runs))
    all_runs, without_trials = _without_trials([replace(run, select=select) for run in all_runs])
    if not all_runs:
        raise ScenarioError("compare: no run given; give run folders, or folders that contain runs")
    measured = _in_order([run for run in all_runs if run.summary.get("rounds")])
    if not measured:
        text = f"compare: no run has finished a round ({_folders(all_runs)}); give runs with results"
        raise ScenarioError(text)
    _refuse_unmeasured(measured, select, metric)
    sweep, sweep_notes = _sweep_of(measured, baseline, targets)
    if targets is None and sweep is not None:
        targets = sweep.targets
    chosen = sorted({target for run in measured for target in run.targets}) if targets is None else list(targets)
    chosen = list({f"{target:g}": target for target in chosen}.values())  # columns are named with %g
    for target in chosen:
        if not 0 < target <= 1:
            raise ScenarioError(f"--target: {target:g} given; give an accuracy greater than 0 and at most 1")
    variants = group_runs(measured)
    notes = [
        f"{run.folder} is left out: it has no finished round yet" for run in all_runs if not run.summary.get("rounds")
    ]
    baseline, baselines, no_baseline = _baseline_of(variants, baseline, sweep)
    notes += [*without_trials, *sweep_notes, *no_baseline]
    variants = [replace(one, is_baseline=True) if one in baselines else one for one in variants]
    notes += list(dict.fromkeys(note for run in measured if run.sweep for note in run.sweep.notes))
    notes += missing_cells(all_runs)
    tunings: list[TuningCard] = []
    for run in measured:
        if run.sweep is not None and run.sweep.tuning is not None and run.sweep.tuning not in tunings:
            tunings.append(run.sweep.tuning)
    if metric is None and select == "last":
        followed = tuned_metric(one.select for one in tunings)
        if followed is not None and all(len(run.series(followed)[0]) for run in measured):
            main = main_measure(followed, select)
    notes += [*outdated, *(note for tuning in tunings for note in tuning.notes)]
    targets_on = sweep.targets_on if sweep is not None else "all"
    if select != "last":
        targets_on = select
    compared = Comparison(
        variants, chosen, baseline, [*notes, *notes_on(variants, spread)], targets_on, select, main, spread
    )
    if targets is not None:  # those of papers are only shown if a run reaches them
        missed = [
            f"no run reaches the target {target:g}"
            for target in chosen
            if not any(f"rounds_to_{target:g}" in of_variant for of_variant in compared.measured.values())
        ]
        compared = replace(compared, notes=[*compared.notes, *missed])
    return compared


def _folders(runs: Sequence[RunRecord]) -> str:
    """Name the folder of the first of these runs, and say how many others there are."""
    others = f" and {plural(len(runs) - 1, 'other run')}" if len(runs) > 1 else ""
    return f"{runs[0].folder}{others}"


def _refuse_unmeasured(runs: Sequence[RunRecord], select: str, metric: str | None) -> None:
    """Raise `ScenarioError` if a run lacks the accuracy that should select its round, or all lack the metric."""
    if select != "last" and (without := [run for run in runs if not len(run.series(f"accuracy/{select}")[0])]):
        what = "validation accuracy" if select == "val" else "accuracy/val_current (it needs evaluation.clients: all)"
        these = "these runs" if len(without) > 1 else "this run"
        leave = f"leave out {these}, or " if len(without) < len(runs) else ""
        raise ScenarioError(
            f"--select: {select} given, but {_folders(without)} measured no {what}; {leave}use --select last"
        )
    if metric is not None and not any(len(run.series(metric)[0]) for run in runs):
        text = f"--metric: {metric} given, but no run measured this metric; choose a run {DRAWABLE[metric].needs}"
        raise ScenarioError(text)


def _baseline_of(
    variants: Sequence[Variant], given: str | None, sweep: SweepCard | None
) -> tuple[str | None, list[Variant], list[str]]:
    """Return the baseline's name and variants, and a note if the sweep file's baseline cannot be used.

    given: by the user, in place of the sweep's. Raises `ScenarioError` if it names no method.
    """
    if given is not None:
        return (*baselines_of(variants, given), [])
    if sweep is None or sweep.baseline is None:
        return None, [], []
    try:
        return (*baselines_of(variants, sweep.baseline), [])
    except ScenarioError:
        methods = ", ".join(dict.fromkeys(variant.method for variant in variants))
        note = (
            f"no differences are shown: the baseline in the sweep file is {sweep.baseline}, but must name exactly one "
            f"of the compared methods: {methods}"
        )
        return None, [], [note]


def _without_trials(runs: list[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """Return the runs without trials of a tuning, and a note on these; if all are trials, all runs."""
    trials = [run for run in runs if run.sweep and run.sweep.trials]
    if not trials or len(trials) == len(runs):
        return runs, []
    kept = [run for run in runs if not (run.sweep and run.sweep.trials)]
    return kept, [f"left out {plural(len(trials), 'trial')} of a tuning, which would count as further seeds"]


def _in_order(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Sort runs: sweep by sweep, in the order of their first runs, and within a sweep in the order of its file."""
    sweeps = [run.cell_folder.parent if run.sweep else None for run in runs]
    order = {sweep: place for place, sweep in enumerate(dict.fromkeys(sweeps))}
    pairs = sorted(zip(runs, sweeps, strict=True), key=lambda pair: (order[pair[1]], pair[0].place))
    return [run for run, _ in pairs]


def _sweep_of(
    runs: Sequence[RunRecord], baseline: str | None, targets: Iterable[float] | None
) -> tuple[SweepCard | None, list[str]]:
    """A sweep with the baseline and targets that count, and a note on each of them in which several sweeps differ.

    baseline, targets: those that the user gave, in place of the sweep's.
    """
    sweeps = {run.cell_folder.parent: run.sweep for run in runs if run.sweep}
    if not sweeps:
        return None, []
    first, *others = sweeps.values()
    names, notes = ", ".join(folder.name for folder in sweeps), []
    for name, default, given in (("baseline", None, baseline), ("targets", None, targets), ("targets_on", "all", None)):
        if any(getattr(one, name) != getattr(first, name) for one in others):
            unused: dict[str, Any] = {name: default}
            first = replace(first, **unused)
            if given is None:
                notes.append(f"{name} of the sweep files is not used, because the sweeps differ in it: {names}")
    return first, notes


def _command(folder: Path) -> str:
    """Return the command that repeats a run, with results and MLflow's record in the current folder."""
    scenario = shlex.quote(str(folder.absolute() / "resolved.yaml"))
    # Without the tags of a sweep, with which MLflow would show the run as another cell of the sweep.
    return f"raysim launch {scenario} --set output=repeated --set 'tracking={{}}'"
