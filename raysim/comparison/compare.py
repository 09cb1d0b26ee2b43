"""Comparison of runs: variants with several seeds each, an interval for every measure, and notes on fairness."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.common.names import apart
from raysim.common.names import name as clean_name
from raysim.comparison.main_measure import ORIGINS, main_measure
from raysim.comparison.measures import MEASURES, SELECT, TO_TARGET, is_cost_to_target
from raysim.comparison.published import Published, by_measure
from raysim.comparison.runs import RunRecord, find_runs
from raysim.comparison.statistics import (
    MIN_SEEDS,
    Estimate,
    estimate,
    holm,
    interquartile_mean,
    paired_difference,
    paired_p_value,
    probability_of_improvement,
)
from raysim.comparison.sweep_card import SweepCard
from raysim.comparison.tuned import TuningCard
from raysim.comparison.tuned_runs import without_outdated
from raysim.plugins.references import Reference
from raysim.report.accuracies import DRAWABLE, Accuracy
from raysim.report.units import plural

if TYPE_CHECKING:
    import pandas as pd

BUDGET = ("rounds", "clients.count", "clients.participation", "training.epochs", "training.batch_size")
"""Keys that decide how much work a run does. If they differ, the variant that does more work has an advantage."""

SELECTED_BY_VAL = {
    "val": "selected by validation: accuracies are test accuracies in the round with the greatest mean validation "
    "accuracy of all clients; a target counts as reached when that validation accuracy reaches it",
    "val_current": "selected by validation: accuracies are test accuracies in the round with the greatest mean "
    "validation accuracy of all clients with the server's current message; a target counts as reached when that "
    "validation accuracy reaches it",
}


class Reached(NamedTuple):
    """The number of runs that reach a target, and the number of all runs."""

    runs: int
    of: int

    @property
    def all(self) -> bool:
        """Whether every run reaches the target."""
        return self.runs == self.of


@dataclass(frozen=True)
class Variant:
    """Runs with the same settings, apart from their seeds and keys that cannot change a result."""

    keys: Mapping[str, Any]  # the keys in which the variants of a comparison differ, and this variant's values
    runs: Sequence[RunRecord]
    called: str  # the algorithm's name in tables
    label: str = ""  # the variant's name in the sweep file
    is_baseline: bool = False

    @property
    def name(self) -> str:
        """The variant's name in tables: its label, or the method followed by the differing keys and their values."""
        if self.label:
            return self.label
        parts = [self.called] if "algorithm.name" in self.keys else []
        parts += [f"{_short(key)}={value!s}" for key, value in self.keys.items() if key != "algorithm.name"]
        return " ".join(parts) or self.called

    @property
    def task(self) -> tuple[str, ...]:
        """The variant's data and client settings, `key=value`, in which the variants of the comparison differ."""
        return tuple(f"{key}={value!s}" for key, value in self.keys.items() if _is_task(key))

    @property
    def method(self) -> str:
        """The variant's name without its task."""
        own = [f"{_short(key)}={v!s}" for key, v in self.keys.items() if key != "algorithm.name" and not _is_task(key)]
        return clean_name(" ".join([self.called, *own]))

    @property
    def counted(self) -> Mapping[Any, RunRecord]:
        """(seed, partition digest) -> the run that is compared: the last one."""
        return {run.pair: run for run in self.runs}

    @property
    def algorithm(self) -> str:
        """The algorithm's name in the scenario."""
        return self.runs[0].algorithm

    @property
    def run_names(self) -> list[str]:
        """The variant's names in the sweep file: its label, and the names in `runs` that define it."""
        cells = [run.cell for run in self.runs if run.cell]
        return list(dict.fromkeys(name for cell in cells for name in (cell.label, *cell.runs) if name))

    @property
    def published(self) -> Sequence[Published]:
        """The values that a paper printed for this variant."""
        return next((run.cell.published for run in self.runs if run.cell), ())


@dataclass(frozen=True, repr=False)
class Comparison:
    """Variants, in the order of their first runs, and notes on how fair and how certain the numbers are."""

    variants: Sequence[Variant]
    targets: Sequence[float]
    baseline: str | None = None  # the name of the baseline
    notes: Sequence[str] = field(default_factory=list)
    targets_on: str = "all"  # what must reach a target: the mean accuracy of clients, one of `CURVES`, or `select`
    select: str = "last"  # what selects the round whose measures count, one of `SELECT`
    main: str = "last"  # the measure, one of `ORIGINS`, of differences, of figures, and of the summary over tasks

    def __repr__(self) -> str:
        """Return the table, the legend and the notes, as `raysim compare` prints them."""
        from raysim.comparison.tables import print_table

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

    def pairs(self, variant: str) -> list[tuple[int, str]]:
        """The distinct (seed, partition digest) pairs of a variant's runs."""
        (chosen,) = (one for one in self.variants if one.name == variant)
        return list(dict.fromkeys(run.pair for run in chosen.runs))

    def published(self, variant: str) -> Mapping[str, Published]:
        """Measure -> the value that a paper printed for a variant."""
        (chosen,) = (one for one in self.variants if one.name == variant)
        return by_measure(chosen.published)

    @property
    def by_task(self) -> dict[str, Comparison]:
        """Task -> a comparison of the variants with that task, named by their methods."""
        variants_of: dict[str, list[Variant]] = {}
        for variant in self.variants:
            variants_of.setdefault(" ".join(variant.task), []).append(replace(variant, label=variant.method))
        return {task: replace(self, variants=_named_apart(variants)) for task, variants in variants_of.items()}

    @property
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
        if not values or (is_cost_to_target(measure) and not self.reached(variant, measure).all):
            return None
        return estimate(list(values.values()))

    def reached(self, variant: str, measure: str) -> Reached:
        """The number of a variant's runs that reach the target of a cost such as `rounds_to_0.5`."""
        count = len(self.pairs(variant))
        return Reached(len(self.measured[variant].get(f"rounds_to_{measure.partition('_to_')[2]}", {})), count)

    def difference(self, variant: str, measure: str) -> Estimate | None:
        """The paired difference to the baseline on the same task, over the seeds and partitions that both have.

        None for the baseline itself, if there is no baseline, if the two share no seed and partition, or if a run of
        either does not reach its target.
        """
        pair = self._pair(variant, measure)
        return paired_difference(*pair) if pair else None

    def _pair(self, variant: str, measure: str) -> tuple[Mapping[Any, float], Mapping[Any, float]] | None:
        """A measure's values for a variant and for the baseline: the one on the same task, or the only one."""
        (one,) = (one for one in self.variants if one.name == variant)
        baselines = [other for other in self.variants if other.is_baseline]
        others = [other for other in baselines if other.task == one.task or len(baselines) == 1]
        if one.is_baseline or not others:
            return None
        if is_cost_to_target(measure) and not all(self.reached(two.name, measure).all for two in (one, others[0])):
            return None
        return self.measured[variant].get(measure, {}), self.measured[others[0].name].get(measure, {})

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
        """A row per variant and measure: differing keys, n, mean, interval, difference to the baseline, values."""
        import pandas as pd

        rows = []
        for variant in self.variants:
            for measure in self.measures:
                values = self.measured[variant.name].get(measure, {})
                if not values and not is_cost_to_target(measure):
                    continue
                estimated = self.estimate(variant.name, measure)
                difference = self.difference(variant.name, measure)
                paper = self.published(variant.name).get(measure)
                rows.append(
                    {
                        "variant": variant.name,
                        **{key: str(value) for key, value in variant.keys.items()},
                        "measure": measure,
                        "n": len(values),
                        "runs": len(self.pairs(variant.name)),
                        "mean": estimated and estimated.mean,
                        "low": estimated and estimated.low,
                        "high": estimated and estimated.high,
                        "difference": difference and difference.mean,
                        "difference_low": difference and difference.low,
                        "difference_high": difference and difference.high,
                        "pairs": difference.n if difference else 0,
                        "p_holm": self.p_values[measure].get(variant.name),
                        "published": paper and paper.value,
                        "published_in": paper.source if paper else "",
                        "seeds": " ".join(str(seed) for seed, _ in values),
                        "values": " ".join(repr(value) for value in values.values()),
                    }
                )
        return pd.DataFrame(rows)

    @property
    def runs(self) -> list[dict[str, str]]:
        """One row per run, with its digest and the command that repeats it."""
        return [
            {
                "variant": variant.name,
                "seed": str(run.seed),
                "status": str(run.summary.get("status")),
                "digest": str(run.summary.get("state_digest") or "")[:16],
                "command": f"raysim launch {shlex.quote(str(run.folder / 'resolved.yaml'))}",
            }
            for variant in self.variants
            for run in variant.runs
        ]

    def over_tasks(self, measure: str | None = None) -> pd.DataFrame | None:
        """One row per method over all tasks (data sets and partitions): interquartile mean, probability of improvement.

        measure: default: `main`.
        None if there are fewer than two tasks, or fewer than two methods with runs on every task.
        """
        import pandas as pd

        by_method: dict[str, dict[tuple[str, ...], list[float]]] = {}
        baseline: dict[tuple[str, ...], list[float]] = {}
        for variant in self.variants:
            values = list(self.measured[variant.name].get(measure or self.main, {}).values())
            by_method.setdefault(variant.method, {}).setdefault(variant.task, []).extend(values)
            if variant.is_baseline:
                baseline[variant.task] = values
        tasks = sorted({task for of_method in by_method.values() for task in of_method})
        complete = {name: by_task for name, by_task in by_method.items() if all(by_task.get(task) for task in tasks)}
        if len(tasks) < 2 or len(complete) < 2:
            return None
        baselines = {variant.method for variant in self.variants if variant.is_baseline}
        rows = []
        for name, by_task in complete.items():
            row: dict[str, Any] = {"method": name, "tasks": len(tasks)}
            row["iqm"] = interquartile_mean([value for task in tasks for value in by_task[task]])
            if name not in baselines and all(baseline.get(task) for task in tasks):
                pairs = [(by_task[task], baseline[task]) for task in tasks]
                row["probability_of_improvement"] = probability_of_improvement(pairs)
            rows.append(row)
        return pd.DataFrame(rows)


def compare(
    *runs: Path | str,
    targets: Iterable[float] | None = None,
    baseline: str | None = None,
    select: str = "last",
    metric: str | None = None,
) -> Comparison:
    """Compare runs: group those that differ only in their seed, and give each measure a 95 % interval over seeds.

    runs: run folders, or folders with run folders at any depth. targets: mean accuracies in (0, 1]; the rounds, MiB
    and FLOP that a run needs to reach them become measures; default: the sweep's targets, or the papers' for this
    data. baseline: the method that others are compared with, on the same data and clients; default: the sweep's, or
    none. select: what selects the round of each run whose measures count: `last`, its last round, or `val`, the round
    with the greatest validation accuracy, whose mean test accuracy is `at_best_val`; a target then counts as reached
    when the validation accuracy reaches it; `val_current` is the same for current networks (`at_best_val_current`).
    metric: the accuracy that figures show, and that is tested and summarised
    over tasks: one of `DRAWABLE`; default: accuracy/all.

    Raises:
        ScenarioError: no run, a damaged run, a target out of range, an unknown baseline, a metric that no run measured
            or that `select` selects no round for, or a run without the validation accuracy that should select its
            round.
    """
    if select not in SELECT:
        raise ScenarioError(f"--select: {select} given; allowed: {', '.join(SELECT)}")
    main = main_measure(metric, select)
    all_runs, outdated = without_outdated(find_runs(runs))
    all_runs = [replace(run, select=select) for run in all_runs]
    if not all_runs:
        raise ScenarioError("compare: no run given; give one or more run folders, or folders that contain runs")
    measured = sorted((run for run in all_runs if run.summary.get("rounds")), key=lambda run: run.place)
    if not measured:
        raise ScenarioError(f"compare: {all_runs[0].folder} has no finished round, and neither do the other runs")
    if select != "last" and (without := [run for run in measured if not len(run.series(f"accuracy/{select}")[0])]):
        others = f" and {plural(len(without) - 1, 'other run')}" if len(without) > 1 else ""
        what = "validation accuracy" if select == "val" else "accuracy/val_current, which needs evaluation.clients: all"
        raise ScenarioError(
            f"--select: {select} given, but {without[0].folder}{others} measured no {what}; "
            "leave them out, or use --select last"
        )
    if metric is not None and not any(len(run.series(metric)[0]) for run in measured):
        raise ScenarioError(f"--metric: {metric} given, but no run has it; choose runs {DRAWABLE[metric].needs}")
    sweeps = [run.sweep for run in measured]
    sweep = sweeps[0] if all(one == sweeps[0] for one in sweeps) else None
    if targets is None and sweep is not None:
        targets = sweep.targets
    chosen = sorted({target for run in measured for target in run.targets}) if targets is None else list(targets)
    chosen = list({f"{target:g}": target for target in chosen}.values())  # columns are named with %g
    for target in chosen:
        if not 0 < target <= 1:
            raise ScenarioError(f"--target: {target:g} given; allowed: an accuracy greater than 0 and at most 1")
    variants = _variants(measured)
    notes = [f"{run.folder}: no round is done yet; left out" for run in all_runs if run not in measured]
    baselines: list[Variant] = []
    if baseline is not None:
        baseline, baselines = _baselines(variants, baseline)
    elif sweep is not None and sweep.baseline is not None:
        try:
            baseline, baselines = _baselines(variants, sweep.baseline)
        except ScenarioError:
            notes.append(f"the sweep's baseline, {sweep.baseline}, is not among these runs: differences are not shown")
    variants = [replace(one, is_baseline=True) if one in baselines else one for one in variants]
    notes += list(dict.fromkeys(note for run in measured if run.sweep for note in run.sweep.notes))
    notes += _cells_without_runs(measured)
    tunings: list[TuningCard] = []
    for run in measured:
        if run.sweep is not None and run.sweep.tuning is not None and run.sweep.tuning not in tunings:
            tunings.append(run.sweep.tuning)
    notes += [*outdated, *(note for tuning in tunings for note in tuning.notes)]
    targets_on = sweep.targets_on if sweep is not None else "all"
    if select != "last":
        targets_on = select
        notes.insert(0, SELECTED_BY_VAL[select])
        notes += _other_selection(tunings, select)
    tuned = frozenset(key for tuning in tunings for key in tuning.keys)
    return Comparison(variants, chosen, baseline, [*notes, *_notes(variants, tuned)], targets_on, select, main)


def _other_selection(tunings: Iterable[TuningCard], select: str) -> list[str]:
    """A sentence for each other validation accuracy that chose the values of these runs."""
    metrics = dict.fromkeys(one.select for one in tunings if one.select.removeprefix("accuracy/") in SELECT)
    return [
        f"values were tuned by {metric}, but --select {select} selects rounds by accuracy/{select}; "
        f"--select {metric.removeprefix('accuracy/')} uses the same accuracy for both"
        for metric in metrics
        if metric != f"accuracy/{select}"
    ]


def _variants(runs: Sequence[RunRecord]) -> list[Variant]:
    by_settings: dict[tuple[Any, ...], list[RunRecord]] = {}
    for run in runs:
        by_settings.setdefault(tuple(sorted(run.deciding.items(), key=str)), []).append(run)
    first = [repeats[0].deciding for repeats in by_settings.values()]
    keys = dict.fromkeys(key for deciding in first for key in deciding)
    differing = [key for key in keys if len({repr(deciding.get(key)) for deciding in first}) > 1]
    # Omit a key that has one value per method: the method's name already implies that value.
    by_method: dict[Any, list[dict[str, Any]]] = {}
    for deciding in first:
        by_method.setdefault(deciding.get("algorithm.name"), []).append(deciding)

    def tells(key: str, deciding: Mapping[str, Any]) -> bool:
        if key == "algorithm.name":
            return True
        if key.startswith("algorithm."):
            return _differs(key, by_method[deciding.get("algorithm.name")])
        return key in deciding and any(_differs(key, of_method) for of_method in by_method.values())

    labels = [{run.cell.label for run in repeats if run.cell} for repeats in by_settings.values()]
    labelled = all(len(own) == 1 and all(own) for own in labels) and len(set().union(*labels)) == len(labels)
    called = _called(runs)
    variants = [
        Variant(
            {key: deciding.get(key) for key in differing if tells(key, deciding)},
            repeats,
            called[repeats[0].algorithm],
            *(label if labelled else ()),
        )
        for deciding, repeats, label in zip(first, by_settings.values(), labels, strict=True)
    ]
    return _named_apart(variants)


def _called(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Algorithm -> its name in tables. Two classes with the same name also show the algorithm's name, with its file."""
    method_of = {run.algorithm: run.method for run in runs}
    methods = list(method_of.values())
    return {name: clean_name(f"{of} ({name})") if methods.count(of) > 1 else of for name, of in method_of.items()}


def _named_apart(variants: Sequence[Variant]) -> list[Variant]:
    """The variants with clean, unique names."""
    labels = apart((variant.name for variant in variants), clean_name)
    return [replace(variant, label=label) for variant, label in zip(variants, labels, strict=True)]


def _differs(key: str, scenarios: Iterable[Mapping[str, Any]]) -> bool:
    return len({repr(deciding.get(key)) for deciding in scenarios}) > 1


def _baselines(variants: Sequence[Variant], baseline: str) -> tuple[str, list[Variant]]:
    """The baseline's name in tables, and its variants, at most one per task. Raises `ScenarioError`.

    baseline: a name in the sweep's `runs`, or the name of a method, an algorithm or a variant; the last two stand for
    their method.
    """
    named = [variant for variant in variants if baseline in variant.run_names]
    if named and len({variant.task for variant in named}) == len(named):
        return baseline, named
    reference = Reference.of(baseline)
    methods = dict.fromkeys(variant.method for variant in variants)
    if baseline not in methods:
        called = {
            variant.method
            for variant in variants
            if baseline in (variant.name, variant.called, variant.algorithm)
            or (reference is not None and reference.name == variant.algorithm)
        }
        if len(called) != 1:
            allowed = dict.fromkeys([*methods, *(name for variant in variants for name in variant.run_names)])
            raise ScenarioError(f"--baseline: {baseline} given; allowed: {', '.join(allowed)}")
        baseline = called.pop()
    return baseline, [variant for variant in variants if variant.method == baseline]


def _cells_without_runs(runs: Sequence[RunRecord]) -> list[str]:
    """One sentence for each sweep of these runs that has cells without a run."""
    begun: dict[Path, set[str]] = {}
    cards: dict[Path, SweepCard] = {}
    for run in runs:
        if run.sweep is not None:
            cell = run.folder.resolve().parent
            begun.setdefault(cell.parent, set()).add(cell.name)
            cards[cell.parent] = run.sweep
    notes = []
    for folder, names in begun.items():
        if missing := [card.label or name for name, card in cards[folder].current.items() if name not in names]:
            labels = list(dict.fromkeys(missing))
            rest = f" and {len(labels) - 10} more" if len(labels) > 10 else ""
            what = f"{len(missing)} of {len(cards[folder].current)} cells of the sweep have no run"
            notes.append(f"{folder.name}: {what}: {', '.join(labels[:10])}{rest}")
    return notes


def _same_results(variants: Sequence[Variant]) -> list[str]:
    """A sentence for variants with identical final states, such as Standalone and a method still in its warm-up."""
    of_digest: dict[tuple[int, object], list[str]] = {}
    for variant in variants:
        for run in variant.runs:
            if digest := run.summary.get("state_digest"):
                of_digest.setdefault((run.seed, digest), []).append(variant.name)
    seeds: dict[tuple[str, ...], list[int]] = {}
    for (seed, _), names in of_digest.items():
        seeds.setdefault(tuple(dict.fromkeys(names)), []).append(seed)
    return [
        f"{' and '.join(names)} gave the same networks, bit for bit, with seed {', '.join(map(str, sorted(shared)))}"
        for names, shared in seeds.items()
        if len(names) > 1
    ]


def _notes(variants: Sequence[Variant], tuned: Collection[str] = ()) -> list[str]:
    """One sentence for each reason why the comparison is less fair or less certain than it looks.

    tuned: keys whose values tuning has chosen; they may differ.
    """
    notes = []
    for key in BUDGET:
        values = {str(run.keys.get(key)) for variant in variants for run in variant.runs}
        if len(values) > 1:
            notes.append(f"unequal budgets: {key} is {' or '.join(sorted(values))}")
    notes += _unequal_settings(variants, tuned)
    notes += _same_results(variants)
    for variant in variants:
        cut = [run for run in variant.runs if run.summary.get("rounds", 0) < run.rounds_asked]
        for run in cut:
            done, asked = run.summary.get("rounds"), run.rounds_asked
            how = "ended early" if run.summary.get("ended_early") else run.summary.get("status")
            notes.append(f"{variant.name}, seed {run.seed}: {how} after {done} of {asked} rounds")
        for run in variant.runs:
            notes += [f"{variant.name}, seed {run.seed}: {text}" for text in run.divergence]
            notes += [f"{variant.name}, seed {run.seed}: its code changed after round {t}" for t in run.code_changes]
        if changed := _unequal_code(list(variant.counted.values())):
            notes.append(
                f"{variant.name}: its runs have different code ({', '.join(changed)}); run the older ones again"
            )
        seeds = [run.seed for run in variant.runs]
        for seed in sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            notes.append(f"{variant.name}, seed {seed}: {seeds.count(seed)} runs; the last one counts")
    every = {run.seed for variant in variants for run in variant.runs}
    for variant in variants:
        if missing := every - {run.seed for run in variant.runs}:
            notes.append(f"{variant.name}: no run with seed {', '.join(map(str, sorted(missing)))}")
    if few := [variant.name for variant in variants if len({run.seed for run in variant.runs}) < MIN_SEEDS]:
        count = "no variant has" if len(few) == len(variants) else f"{', '.join(few)}: fewer than"
        notes.append(f"{count} {MIN_SEEDS} seeds{'' if len(few) < len(variants) else ' or more'}: no interval is given")
    every_run = [run for variant in variants for run in variant.runs]
    for package in ("raysim", "python", "torch", "numpy"):
        versions = {str(run.summary.get("versions", {}).get(package)) for run in every_run}
        if len(versions) > 1:
            notes.append(f"unequal versions: {package} is {' or '.join(sorted(versions))}")
    for seed in sorted(every):
        partitions = {run.summary.get("partition_digest") for run in every_run if run.seed == seed}
        tasks = {tuple(run.keys.get(key) for key in run.keys if _is_task(key)) for run in every_run if run.seed == seed}
        if len(partitions) > len(tasks):
            notes.append(f"seed {seed}: runs with the same settings have different partitions, so they are not paired")
    return notes


def _unequal_code(runs: Sequence[RunRecord]) -> list[str]:
    """The method's files whose contents differ between runs."""
    digests: dict[str, set[str]] = {}
    for run in runs:
        for name, digest in run.code_files.items():
            digests.setdefault(name, set()).add(digest)
    return sorted(name for name, of_file in digests.items() if len(of_file) > 1)


def _unequal_settings(variants: Sequence[Variant], tuned: Collection[str]) -> list[str]:
    """One sentence for every key in which methods differ, except the method's own keys and those in variants' names.

    tuned: further keys to leave out.
    """
    scenarios = [variant.runs[0].deciding for variant in variants]
    mentioned = {*BUDGET, *tuned, *(key for variant in variants for key in variant.keys)}
    notes = []
    for key in dict.fromkeys(key for scenario in scenarios for key in scenario):
        if key in mentioned or key.startswith("algorithm.") or not _differs(key, scenarios):
            continue
        methods: dict[str, list[str]] = {}
        for variant, scenario in zip(variants, scenarios, strict=True):
            methods.setdefault(str(scenario.get(key)), []).append(variant.method)
        values = (f"{value} ({', '.join(dict.fromkeys(names))})" for value, names in methods.items())
        notes.append(f"unequal settings: {key} is {' or '.join(values)}")
    return notes


def _is_task(key: str) -> bool:
    """Whether a key belongs to the task, the data and clients of a run."""
    return key.startswith(("data.", "clients."))


def _short(key: str) -> str:
    """The last part of a dotted key, or the last two parts if the last is `name`."""
    parts = key.split(".")
    return ".".join(parts[-2:]) if parts[-1] == "name" else parts[-1]
