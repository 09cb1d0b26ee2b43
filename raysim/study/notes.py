"""Notes on a comparison: a sentence for each reason that may change its conclusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raysim.common.text import few
from raysim.results.units import plural
from raysim.study.runs import RunRecord
from raysim.study.statistics import MIN_SEEDS
from raysim.study.variants import Variant

BUDGET = (
    "rounds",
    "clients.count",
    "clients.participation",
    "training.epochs",
    "training.steps",
    "training.batch_size",
)
"""Keys that decide how much work a run does. Differences in them are noted even if the variants' names show them."""


def missing_cells(runs: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each sweep of which some cells have no run among these runs."""
    sweeps = {run.cell_folder.parent: run.sweep for run in runs if run.sweep is not None}
    begun = {run.cell_folder for run in runs}
    notes = []
    for folder, sweep in sweeps.items():
        missing = [cell.label or name for name, cell in sweep.cells.items() if folder / name not in begun]
        if missing:
            what = f"{len(missing)} of {len(sweep.cells)} cells of the sweep are missing"
            notes.append(f"{folder.name}: {what}: {few(list(dict.fromkeys(missing)))}")
    return notes


def notes_on(variants: Sequence[Variant]) -> list[str]:
    """One sentence for each reason why the comparison is less fair or less certain than it looks."""
    return [
        *_unequal_settings(variants),
        *_unequal_data(variants),
        *_not_tuned(variants),
        *(note for variant in variants for note in _on_runs(variant)),
        *_few_seeds(variants),
    ]


def _unequal_settings(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence for each key in which variants differ, unless it belongs to a method or is in their names.

    Tuned values of a key may differ from each other, but not from a value that was not tuned.
    """
    scenarios = [next(iter(variant.counted.values())).deciding for variant in variants]
    named = {key for variant in variants for key in variant.keys}
    named -= {*BUDGET, *(key for variant in variants for key in variant.chosen)}
    notes = []
    for key in dict.fromkeys(key for scenario in scenarios for key in scenario):
        if key in named or key.startswith("algorithm."):
            continue
        having: dict[str, dict[str, None]] = {}  # value -> names of methods
        for variant, scenario in zip(variants, scenarios, strict=True):
            value = "tuned" if key in variant.chosen else str(scenario.get(key))
            having.setdefault(value, {})[variant.method] = None
        if len(having) > 1:
            notes.append(f"unequal settings: {key} is {_values(having)}")
    return notes


def _unequal_data(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence for each data set whose files changed between runs with the same data settings."""
    by_settings: dict[str, dict[str, dict[str, None]]] = {}  # settings of data -> digest -> names of variants
    for variant in variants:
        for run in variant.counted.values():
            settings = str([item for item in run.keys.items() if item[0].startswith("data.")])
            digest = str(run.summary.get("dataset", {}).get("digest"))[:8]
            by_settings.setdefault(settings, {}).setdefault(digest, {})[variant.name] = None
    changed = [having for having in by_settings.values() if len(having) > 1]
    return [f"unequal data: their digest is {_values(having)}; these results cannot be compared" for having in changed]


def _values(having: Mapping[str, Iterable[str]]) -> str:
    """Write values with the names that have them."""
    return " or ".join(f"{value} ({', '.join(names)})" for value, names in having.items())


def _on_runs(variant: Variant) -> list[str]:
    """Return sentences about unfinished runs of a variant, and runs in which clients diverged or failed."""
    notes = []
    for run in variant.counted.values():
        found = []
        done, asked = run.summary["rounds"], int(run.keys.get("rounds", 0))
        if done < asked:
            how = "ended early" if run.summary.get("ended_early") else run.summary.get("status")
            found.append(f"{how} after {done} of {asked} rounds")
        if run.diverged is not None:
            found.append(f"its loss is NaN or infinite in round {run.diverged}")
        if diverged := run.summary.get("diverged_clients"):
            found.append(f"{plural(diverged, 'client')} diverged: the last loss or upload was NaN or infinite")
        if failed := run.summary.get("failed_clients"):
            found.append(f"clients failed {plural(failed, 'time')}; rounds continued without them")
        notes += [f"{variant.name}, seed {run.seed}: {text}" for text in found]
    return notes


def _few_seeds(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence that names the variants with too few seeds for an interval."""
    names = [variant.name for variant in variants if len(variant.counted) < MIN_SEEDS]
    return [f"no confidence intervals for {', '.join(names)}: fewer than {MIN_SEEDS} seeds"] if names else []


def _not_tuned(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence that names the variants without tuned values, if others have some."""
    others = [variant.name for variant in variants if not variant.chosen]
    return [f"unequal tuning: not tuned: {', '.join(others)}"] if 0 < len(others) < len(variants) else []
