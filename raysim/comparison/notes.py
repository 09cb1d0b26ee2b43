"""Notes on a comparison: a sentence for each reason that may change its conclusion."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.comparison.runs import RunRecord
from raysim.comparison.statistics import MIN_SEEDS, Spread
from raysim.comparison.variants import Variant, differs

BUDGET = ("rounds", "clients.count", "clients.participation", "training.epochs", "training.batch_size")
"""Keys that decide how much work a run does. If they differ, the variant that does more work has an advantage."""


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
    runs = [run for variant in variants for run in variant.runs]
    return [
        *_unequal_budgets(runs),
        *_not_tuned(variants),
        *_unequal_settings(variants),
        *_absent_clients(variants),
        *(note for variant in variants for note in _on_runs(variant)),
        *_missing_seeds(variants),
        *_few_seeds(variants, spread),
        *_unequal_environments(runs),
        *_unequal_files(variants),
    ]


def _on_runs(variant: Variant) -> list[str]:
    """Sentences on a variant's runs that ended early, failed, have different code, or have the same seed."""
    notes = []
    for run in variant.counted.values():
        done, asked = run.summary["rounds"], run.rounds_asked
        if done < asked:
            how = "ended early" if run.summary.get("ended_early") else run.summary.get("status")
            notes.append(f"{variant.name}, seed {run.seed}: {how} after {done} of {asked} rounds")
        notes += [f"{variant.name}, seed {run.seed}: {text}" for text in run.failures]
    if changed := _unequal_code(list(variant.counted.values())):
        notes.append(f"{variant.name}: its runs used different code ({', '.join(changed)}); run the older runs again")
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
    """A sentence for each number of clients that have not taken part in the runs of a variant."""
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


def _unequal_budgets(runs: Sequence[RunRecord]) -> list[str]:
    """A sentence for each key in `BUDGET` of which runs have different values."""
    notes = []
    for key in BUDGET:
        values = {str(run.keys.get(key)) for run in runs}
        if len(values) > 1:
            notes.append(f"unequal budgets: {key} is {' or '.join(sorted(values))}")
    return notes


def _missing_seeds(variants: Sequence[Variant]) -> list[str]:
    """A sentence for each variant without a seed that another variant has."""
    every = {run.seed for variant in variants for run in variant.runs}
    notes = []
    for variant in variants:
        if missing := every - {run.seed for run in variant.runs}:
            notes.append(f"{variant.name}: no run with seed {', '.join(map(str, sorted(missing)))}")
    return notes


def _few_seeds(variants: Sequence[Variant], spread: Spread) -> list[str]:
    """A sentence that names the variants with too few seeds for an interval or standard deviation."""
    what, least = ("standard deviations", 2) if spread == "std" else ("confidence intervals", MIN_SEEDS)
    few = [variant.name for variant in variants if len(variant.counted) < least]
    if not few:
        return []
    if len(few) == len(variants):
        return [f"no {what}: every variant has fewer than {least} seeds"]
    return [f"no {what} for {', '.join(few)}: fewer than {least} seeds"]


def _unequal_environments(runs: Sequence[RunRecord]) -> list[str]:
    """A sentence for each library, and for the processor, of which runs had different ones."""
    notes = []
    for name in ("raysim", "python", "torch", "numpy", "processor"):
        values = {str(run.summary.get("versions", {}).get(name, "unknown")) for run in runs}
        if len(values) > 1:
            notes.append(f"runs in unequal environments: {name} is {' or '.join(sorted(values))}")
    return notes


def _unequal_files(variants: Sequence[Variant]) -> list[str]:
    """A sentence for each data set, and each other file, that was changed between the runs that count."""
    read: dict[tuple[str, str], dict[str, list[str]]] = {}  # (data set or file, settings of data) -> digest -> variants
    for variant in variants:
        for run in variant.counted.values():
            task = sorted((key, value) for key, value in run.keys.items() if key.startswith("data."))
            dataset = run.summary.get("dataset", {})
            digests = {(str(dataset.get("name")), repr(task)): str(dataset.get("digest"))}
            digests |= {(path, ""): digest for path, digest in run.summary.get("inputs", {}).items()}
            for what, digest in digests.items():
                read.setdefault(what, {}).setdefault(digest, []).append(variant.name)
    return [
        f"unequal data: {what} changed between runs, so their results cannot be compared: "
        + " or ".join(f"{digest[:8]} ({', '.join(dict.fromkeys(names))})" for digest, names in by_digest.items())
        for (what, _), by_digest in read.items()
        if len(by_digest) > 1
    ]


def _unequal_code(runs: Sequence[RunRecord]) -> list[str]:
    """The method's files whose contents differ between runs."""
    digests: dict[str, set[str]] = {}
    for run in runs:
        for name, digest in run.code_files.items():
            digests.setdefault(name, set()).add(digest)
    return sorted(name for name, of_file in digests.items() if len(of_file) > 1)


def _not_tuned(variants: Sequence[Variant]) -> list[str]:
    """A sentence that names the variants of no tuned sweep, if other variants are of one."""
    others = [variant.name for variant in variants if not variant.tunings]
    if not others or len(others) == len(variants):
        return []
    return [f"unequal tuning: {', '.join(others)} {'was' if len(others) == 1 else 'were'} not tuned"]


def _unequal_settings(variants: Sequence[Variant]) -> list[str]:
    """One sentence for every key in which methods differ, except the method's own keys and those in variants' names.

    Tuned values of a key may differ from each other, but not from a value that was not tuned.
    """
    scenarios = [next(iter(variant.counted.values())).deciding for variant in variants]
    mentioned = {*BUDGET, *(key for variant in variants for key in variant.keys)}
    mentioned -= {key for variant in variants for key in variant.tuned_keys}
    notes = []
    for key in dict.fromkeys(key for scenario in scenarios for key in scenario):
        if key in mentioned or key.startswith("algorithm.") or not differs(key, scenarios):
            continue
        methods: dict[str, list[str]] = {}
        for variant, scenario in zip(variants, scenarios, strict=True):
            value = "tuned" if key in variant.tuned_keys else str(scenario.get(key))
            methods.setdefault(value, []).append(variant.method)
        if len(methods) > 1:
            values = (f"{value} ({', '.join(dict.fromkeys(names))})" for value, names in methods.items())
            notes.append(f"unequal settings: {key} is {' or '.join(values)}")
    return notes
