"""Notes on a comparison: a sentence for each reason that may change its conclusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raysim.common.text import few
from raysim.comparison.runs import RunRecord
from raysim.comparison.statistics import MIN_SEEDS, Spread
from raysim.comparison.variants import Variant

BUDGET = (
    "rounds",
    "clients.count",
    "clients.participation",
    "training.epochs",
    "training.steps",
    "training.batch_size",
)
"""Keys that decide how much work a run does: unequal ones are noted even if the variants' names tell them."""


def missing_cells(runs: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each sweep of these runs that has cells with none of these runs."""
    sweeps = {run.cell_folder.parent: run.sweep for run in runs if run.sweep is not None}
    begun = {run.cell_folder for run in runs}
    notes = []
    for folder, sweep in sweeps.items():
        missing = [cell.label or name for name, cell in sweep.current.items() if folder / name not in begun]
        if missing:
            what = f"{len(missing)} of {len(sweep.current)} cells of the sweep are missing"
            notes.append(f"{folder.name}: {what}: {few(list(dict.fromkeys(missing)))}")
    return notes


def notes_on(variants: Sequence[Variant], spread: Spread) -> list[str]:
    """One sentence for each reason why the comparison is less fair or less certain than it looks."""
    return [
        *_unequal_settings(variants),
        *_not_tuned(variants),
        *(note for variant in variants for note in _on_runs(variant)),
        *_few_seeds(variants, spread),
        *_unequal_data(variants),
    ]


def _unequal(what: str, facts: Iterable[tuple[str, Mapping[str, object]]]) -> list[str]:
    """A sentence for each fact that has several values. facts: the names of variants or runs, and their facts."""
    having: dict[str, dict[str, dict[str, None]]] = {}  # fact -> value -> names
    for name, of_name in facts:
        for fact, value in of_name.items():
            having.setdefault(fact, {}).setdefault(str(value), {})[name] = None
    return [
        f"unequal {what}: {fact} is " + " or ".join(f"{value} ({', '.join(names)})" for value, names in values.items())
        for fact, values in having.items()
        if len(values) > 1
    ]


def _unequal_data(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence for each data set that was changed between runs with the same settings of data."""
    by_task: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for variant in variants:
        for run in variant.counted.values():
            task = sorted((key, value) for key, value in run.keys.items() if key.startswith("data."))
            dataset = run.summary.get("dataset", {})
            digest = {str(dataset.get("name")): str(dataset.get("digest"))[:8]}
            by_task.setdefault(repr(task), []).append((variant.name, digest))
    notes = [note for facts in by_task.values() for note in _unequal("data", facts)]
    return [f"{note}; these results cannot be compared" for note in notes]


def _unequal_settings(variants: Sequence[Variant]) -> list[str]:
    """A sentence for every key in which variants differ, except the methods' own keys and those in variants' names.

    Tuned values of a key may differ from each other, but not from a value that was not tuned.
    """
    scenarios = [next(iter(variant.counted.values())).deciding for variant in variants]
    named = {key for variant in variants for key in variant.keys}
    named -= {*BUDGET, *(key for variant in variants for key in variant.tuned_keys)}
    keys = dict.fromkeys(key for scenario in scenarios for key in scenario)
    told = [key for key in keys if key not in named and not key.startswith("algorithm.")]
    return _unequal(
        "settings",
        (
            (variant.method, {key: "tuned" if key in variant.tuned_keys else scenario.get(key) for key in told})
            for variant, scenario in zip(variants, scenarios, strict=True)
        ),
    )


def _on_runs(variant: Variant) -> list[str]:
    """Sentences on a variant's runs that ended early, failed, diverged, or have different code."""
    code = _unequal("code", ((f"seed {seed}", run.code) for seed, run in variant.counted.items()))
    notes = [f"{variant.name}: {note}; run the older runs again" for note in code]
    for run in variant.counted.values():
        done, asked = run.summary["rounds"], run.rounds_asked
        if done < asked:
            how = "ended early" if run.summary.get("ended_early") else run.summary.get("status")
            notes.append(f"{variant.name}, seed {run.seed}: {how} after {done} of {asked} rounds")
        notes += [f"{variant.name}, seed {run.seed}: {text}" for text in run.failures]
    return notes


def _few_seeds(variants: Sequence[Variant], spread: Spread) -> list[str]:
    """Return a sentence that names the variants with too few seeds for an interval or standard deviation."""
    what, least = ("standard deviations", 2) if spread == "std" else ("confidence intervals", MIN_SEEDS)
    names = [variant.name for variant in variants if len(variant.counted) < least]
    return [f"no {what} for {', '.join(names)}: fewer than {least} seeds"] if names else []


def _not_tuned(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence that names the variants without tuned values, if others have some."""
    others = [variant.name for variant in variants if not variant.chosen]
    return [f"unequal tuning: not tuned: {', '.join(others)}"] if 0 < len(others) < len(variants) else []
