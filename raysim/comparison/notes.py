"""Notes on a comparison: a sentence for each reason that may change its conclusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    """Sentences on the cells of these runs' sweeps of which there is none of these runs, and why."""
    sweeps = {run.cell_folder.parent: run.sweep for run in runs if run.sweep is not None}
    begun = {run.cell_folder for run in runs}
    notes = []
    for folder, sweep in sweeps.items():
        missing: dict[str, list[str]] = {}
        for name, cell in sweep.current.items():
            if folder / name not in begun:
                has_run = any((folder / name).glob("*/summary.json"))
                missing.setdefault("are not compared here" if has_run else "have no run", []).append(cell.label or name)
        for why, cells in missing.items():
            labels = list(dict.fromkeys(cells))
            rest = f" and {len(labels) - 10} more" if len(labels) > 10 else ""
            what = f"{len(cells)} of {len(sweep.current)} cells of the sweep {why}"
            notes.append(f"{folder.name}: {what}: {', '.join(labels[:10])}{rest}")
    return notes


def notes_on(variants: Sequence[Variant], spread: Spread) -> list[str]:
    """One sentence for each reason why the comparison is less fair or less certain than it looks."""
    counted = [(variant.name, run) for variant in variants for run in variant.counted.values()]
    return [
        *_unequal_settings(variants),
        *_not_tuned(variants),
        *_absent_clients(variants),
        *(note for variant in variants for note in _on_runs(variant)),
        *_missing_seeds(variants),
        *_few_seeds(variants, spread),
        *_unequal("environments", ((variant.name, _environment(run)) for variant in variants for run in variant.runs)),
        *_unequal_data(counted),
        *_unequal("files", ((name, _short(run.summary.get("inputs", {}))) for name, run in counted)),
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


def _environment(run: RunRecord) -> dict[str, object]:
    """Return the processor and the versions of the libraries that may change a result."""
    versions = run.summary.get("versions", {})
    return {name: versions.get(name, "unknown") for name in ("raysim", "python", "torch", "numpy", "processor")}


def _short(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the first digits of each digest."""
    return {name: digest[:8] for name, digest in digests.items()}


def _unequal_data(counted: Sequence[tuple[str, RunRecord]]) -> list[str]:
    """Return a sentence for each data set that was changed between runs with the same settings of data."""
    by_task: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for name, run in counted:
        task = sorted((key, value) for key, value in run.keys.items() if key.startswith("data."))
        dataset = run.summary.get("dataset", {})
        digest = _short({str(dataset.get("name")): str(dataset.get("digest"))})
        by_task.setdefault(repr(task), []).append((name, digest))
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
    """Sentences on a variant's runs that ended early, failed, have different code, or have the same seed."""
    notes = []
    for run in variant.counted.values():
        done, asked = run.summary["rounds"], run.rounds_asked
        if done < asked:
            how = "ended early" if run.summary.get("ended_early") else run.summary.get("status")
            notes.append(f"{variant.name}, seed {run.seed}: {how} after {done} of {asked} rounds")
        notes += [f"{variant.name}, seed {run.seed}: {text}" for text in run.failures]
    code = ((f"seed {run.seed}", _short(run.code_files)) for run in variant.counted.values())
    notes += [f"{variant.name}: {note}; run the older runs again" for note in _unequal("code", code)]
    for pair, counted in sorted(variant.counted.items()):
        same = [
            run for run in variant.runs if run.pair == pair or (run.cell and run.cell_folder == counted.cell_folder)
        ]
        which = "last finished" if counted.is_finished else "last"
        if len(same) > 1:
            others = "" if all(run.pair == pair for run in same) else ", because the others have other data"
            notes.append(f"{variant.name}, seed {counted.seed}: {len(same)} runs; only the {which} run counts{others}")
    return notes


def _absent_clients(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence for each number of clients that have not taken part in the runs of a variant."""
    named: dict[str, list[str]] = {}
    for variant in variants:
        runs = list(variant.counted.values())
        if absent := sorted({run.absent for run in runs if run.absent}):
            clients = runs[0].keys.get("clients.count")
            named.setdefault(f"{' or '.join(map(str, absent))} of {clients}", []).append(variant.name)
    return [
        f"{', '.join(names)}: {count} clients have not taken part yet; `last` counts their initial networks, and "
        "`last_took_part` leaves them out; for methods with one global model, papers report the accuracy of the "
        "current model on all clients, which is `last_current` and needs evaluation.clients: all"
        for count, names in named.items()
    ]


def _missing_seeds(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence for each variant without a seed that another variant has."""
    every = {run.seed for variant in variants for run in variant.runs}
    notes = []
    for variant in variants:
        if missing := every - {run.seed for run in variant.runs}:
            notes.append(f"{variant.name}: no run with seed {', '.join(map(str, sorted(missing)))}")
    return notes


def _few_seeds(variants: Sequence[Variant], spread: Spread) -> list[str]:
    """Return a sentence that names the variants with too few seeds for an interval or standard deviation."""
    what, least = ("standard deviations", 2) if spread == "std" else ("confidence intervals", MIN_SEEDS)
    few = [variant.name for variant in variants if len(variant.counted) < least]
    if not few:
        return []
    if len(few) == len(variants):
        return [f"no {what}: every variant has fewer than {least} seeds"]
    return [f"no {what} for {', '.join(few)}: fewer than {least} seeds"]


def _not_tuned(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence that names the variants of no tuned sweep, if other variants are of one."""
    others = [variant.name for variant in variants if not variant.tunings]
    if not others or len(others) == len(variants):
        return []
    return [f"unequal tuning: {', '.join(others)} {'was' if len(others) == 1 else 'were'} not tuned"]
