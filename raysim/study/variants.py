"""Variants of a comparison, each with runs that differ only in their seed, and the names of variants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raysim.common.text import distinct
from raysim.plugins.registry import Reference
from raysim.study.published import Published
from raysim.study.runs import RunRecord
from raysim.study.sweep_card import TuningCard


@dataclass(frozen=True)
class Variant:
    """Runs with the same settings, apart from their seeds and keys that cannot change a result."""

    keys: Mapping[str, Any]  # the keys in which the variants of the comparison differ, with this variant's values
    runs: Sequence[RunRecord]
    label: str = ""  # the variant's name in the sweep file
    is_baseline: bool = False
    method_label: str = ""  # the variant's name without its task, from the names in `runs`

    @property
    def name(self) -> str:
        """The variant's name in tables: its label, or the method followed by the differing keys and their values."""
        if self.label:
            return self.label
        parts = [self.called] if "algorithm.name" in self.keys else []
        parts += [_assigned(key, value) for key, value in self.keys.items() if key != "algorithm.name"]
        return " ".join(parts) or self.called

    @property
    def task(self) -> tuple[str, ...]:
        """The variant's settings of data and clients, as `key=value`, in which the compared variants differ."""
        return tuple(f"{key}={value!s}" for key, value in self.keys.items() if is_task(key))

    @property
    def method(self) -> str:
        """The variant's name without its task.

        Without a name in `runs`: the algorithm's name, followed by `key=value` for each differing key of the method.
        """
        own = [_assigned(key, self.keys[key]) for key in self.keys if key != "algorithm.name" and not is_task(key)]
        return self.method_label or " ".join([self.called, *own])

    @property
    def counted(self) -> Mapping[Any, RunRecord]:
        """(seed, digests of data and partition) -> the run to compare: the last finished run, or else the last run.

        The runs of one cell of a sweep may have different data, if the data was changed; only one of them counts.
        """
        runs = sorted(self.runs, key=lambda run: run.summary.get("status") == "finished")
        of_cell = {run.cell_folder: run for run in runs if run.cell}
        return {run.pair: run for run in runs if of_cell.get(run.cell_folder, run) is run}

    @property
    def called(self) -> str:
        """The algorithm's name in tables."""
        return self.runs[0].method

    @property
    def run_names(self) -> list[str]:
        """The variant's names in the sweep file: its label, and the names in `runs` that define it."""
        cells = [run.cell for run in self.runs if run.cell]
        return list(dict.fromkeys(name for cell in cells for name in (cell.label, *cell.runs) if name))

    @property
    def tunings(self) -> list[TuningCard]:
        """The tunings of the sweeps that the variant's runs belong to."""
        return list({id(one): one for run in self.runs if run.sweep and (one := run.sweep.tuning)}.values())

    @property
    def chosen(self) -> Mapping[str, str]:
        """Key -> the value that a tuning has chosen for this variant, as YAML."""
        labels = {run.cell.label for run in self.runs if run.cell}  # empty if the sweep has only one variant
        variants = (one for tuning in self.tunings for one in tuning.variants)
        tuned = (one for one in variants if one.label in labels or "" in labels)
        return {chosen.key: chosen.value for one in tuned for chosen in one.chosen}

    @property
    def published(self) -> Mapping[str, Published]:
        """Measure -> the value that a paper printed for this variant."""
        values = next((run.cell.published for run in self.runs if run.cell), ())
        return {one.measure: one for one in values if one.measure is not None and one.value is not None}


def group_runs(runs: Sequence[RunRecord]) -> list[Variant]:
    """Group runs with the same settings apart from their seeds, in the order of their first runs."""
    by_settings: dict[object, list[RunRecord]] = {}
    for run in runs:
        by_settings.setdefault((_tuned_label(run), *sorted(run.deciding.items(), key=str)), []).append(run)
    groups = list(by_settings.values())
    labels = [{run.cell.label for run in group if run.cell} for group in groups]
    labelled = all(len(own) == 1 and all(own) for own in labels) and len(set().union(*labels)) == len(labels)
    variants = [
        Variant(keys, group, *(label if labelled else ()))
        for keys, group, label in zip(_distinguishing(groups), groups, labels, strict=True)
    ]
    return with_distinct_names(_with_method_names(variants))


def _tuned_label(run: RunRecord) -> str:
    """Return the run's label if it was tuned, because tuning may choose the settings of another variant."""
    tuned = run.sweep.tuning.variants if run.sweep and run.sweep.tuning else ()
    return run.cell.label if run.cell and run.cell.label in {one.label for one in tuned} else ""


def _distinguishing(groups: Sequence[Sequence[RunRecord]]) -> list[dict[str, Any]]:
    """For each group of runs, return the keys that distinguish it from the other groups, and its values.

    A key is taken if it tells groups apart that the keys before it do not: first the method, then the keys of the task,
    then all others. So a key whose value follows from the method or the task is not taken.
    """
    settings = [group[0].deciding for group in groups]
    keys = dict.fromkeys(key for deciding in settings for key in deciding)
    taken, parts = [], [""] * len(settings)  # the keys so far do not distinguish groups with equal texts in `parts`
    for key in sorted(keys, key=lambda key: (key != "algorithm.name", not is_task(key))):
        finer = [f"{part} {deciding.get(key)!r}" for part, deciding in zip(parts, settings, strict=True)]
        if len(set(finer)) > len(set(parts)):
            taken.append(key)
            parts = finer

    def is_told(key: str, deciding: Mapping[str, Any]) -> bool:
        of_method = [one for one in settings if one.get("algorithm.name") == deciding.get("algorithm.name")]
        return key in deciding and (
            key == "algorithm.name" or not key.startswith("algorithm.") or differs(key, of_method)
        )

    return [{key: deciding[key] for key in taken if is_told(key, deciding)} for deciding in settings]


def _with_method_names(variants: Sequence[Variant]) -> Sequence[Variant]:
    """Return the variants with names from `runs` in the sweep file, unless two variants of a task have one name."""
    names = _names_in_runs(variants)
    if len({(variant.task, name) for variant, name in zip(variants, names, strict=False)}) < len(variants):
        return variants
    return [replace(variant, method_label=name) for variant, name in zip(variants, names, strict=True)]


def _names_in_runs(variants: Sequence[Variant]) -> list[str]:
    """Return the names in `runs` of the sweep file that stand for methods; empty if there are none.

    A name stands for a method if variants of one task differ in it; other names stand for tasks, such as data sets.
    """
    names = [next((run.cell.runs for run in variant.runs if run.cell), ()) for variant in variants]
    by_task: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for variant, name in zip(variants, names, strict=True):
        by_task.setdefault(variant.task, []).append(name)
    if len(set(map(len, names))) != 1:
        return []
    axes = [i for i in range(len(names[0])) if any(len({name[i] for name in of}) > 1 for of in by_task.values())]
    return [" ".join(name[i] for i in axes) for name in names] if axes else []


def with_distinct_names(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants with clean, unique names."""
    labels = distinct(variant.name for variant in variants)
    return [replace(variant, label=label) for variant, label in zip(variants, labels, strict=True)]


def differs(key: Any, mappings: Iterable[Mapping[Any, Any]]) -> bool:
    """Return whether mappings have different values of a key."""
    return len({repr(one.get(key)) for one in mappings}) > 1


def baselines_of(variants: Sequence[Variant], baseline: str) -> tuple[str, list[Variant]]:
    """Return the baseline's name in tables, and its variants, at most one per task; none if the name is unknown.

    baseline: a name in the sweep's `runs`, or the name of a method, an algorithm or a variant; the last two stand for
    their method.
    """
    named = [variant for variant in variants if baseline in variant.run_names]
    if named and len({variant.task for variant in named}) == len(named):
        return baseline, named
    reference = Reference.of(baseline)  # None unless it names the file of a custom method
    name = baseline if reference is None else reference.name
    methods = {one.method for one in variants if name in (one.method, one.name, one.called, one.runs[0].algorithm)}
    if len(methods) != 1:
        return baseline, []
    (method,) = methods
    return method, [variant for variant in variants if variant.method == method]


def is_task(key: str) -> bool:
    """Return whether a key belongs to the task, the data and clients of a run."""
    return key.startswith(("data.", "clients."))


def _assigned(key: str, value: object) -> str:
    """Return `key=value` with the last part of a dotted key, or the last two parts if one would be ambiguous."""
    parts = key.split(".")
    long = parts[-1] == "name" or parts[0] in ("init", "seeds")
    return f"{'.'.join(parts[-2:]) if long else parts[-1]}={'null' if value is None else value}"
