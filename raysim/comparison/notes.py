"""Notes on a comparison: a sentence for each reason why it is less fair, or less certain, than it looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from raysim.comparison.main_measure import tuned_metric
from raysim.comparison.measures import SELECT
from raysim.comparison.runs import RunRecord
from raysim.comparison.statistics import MIN_SEEDS, Spread
from raysim.comparison.tuned import TuningCard
from raysim.comparison.variants import Variant, differs, is_task

BUDGET = ("rounds", "clients.count", "clients.participation", "training.epochs", "training.batch_size")
"""Keys that decide how much work a run does. If they differ, the variant that does more work has an advantage."""

SELECTED_BY_VAL = {
    "val": "validation selects the round: test accuracies are those of the round with the greatest mean validation "
    "accuracy of all clients (accuracy/val), and a run reaches a target in the first round in which accuracy/val is "
    "at least the target",
    "val_current": "validation selects the round: test accuracies are those of the round with the greatest mean "
    "validation accuracy of all clients (accuracy/val_current), and a run reaches a target in the first round in which "
    "accuracy/val_current is at least the target; clients are tested and validated after they received the server's "
    "current message",
}

FOLLOWS_TUNING = (
    "tuning chose the hyperparameters by the accuracy that clients have after they received the server's current "
    "message, so differences and figures show accuracy/all_current; to show the latest test accuracy of each client's "
    "own network instead, use --metric accuracy/all"
)


OWN, CURRENT = frozenset({"accuracy/all", "accuracy/val"}), frozenset({"accuracy/all_current", "accuracy/val_current"})
"""Accuracies of clients' own networks, and after they received the server's current message."""


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
        f"{'seed' if len(shared) == 1 else 'seeds'} {', '.join(map(str, sorted(shared)))}: "
        f"{' and '.join(names)} ended with bit-identical networks"
        for names, shared in seeds.items()
        if len(names) > 1
    ]


def notes_on(variants: Sequence[Variant], spread: Spread) -> list[str]:
    """One sentence for each reason why the comparison is less fair or less certain than it looks."""
    runs = [run for variant in variants for run in variant.runs]
    return [
        *_unequal_budgets(runs),
        *_not_tuned(variants),
        *_unequal_settings(variants),
        *_absent_clients(variants),
        *_same_results(variants),
        *(note for variant in variants for note in _on_runs(variant)),
        *_same_settings(variants),
        *_missing_seeds(variants),
        *_few_seeds(variants, spread),
        *_unequal_environments(runs),
        *_unequal_files(variants),
        *_unpaired([run for variant in variants for run in variant.counted.values()]),
    ]


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


def _on_runs(variant: Variant) -> list[str]:
    """Sentences on a variant's runs that ended early, failed, changed their code, or have the same seed."""
    notes = []
    for run in variant.counted.values():
        done, asked = run.summary["rounds"], run.rounds_asked
        if done < asked:
            how = "ended early" if run.summary.get("ended_early") else run.summary.get("status")
            notes.append(f"{variant.name}, seed {run.seed}: {how} after {done} of {asked} rounds")
    for run in variant.counted.values():
        notes += [f"{variant.name}, seed {run.seed}: {text}" for text in run.failures]
        notes += [f"{variant.name}, seed {run.seed}: its code changed after round {t}" for t in run.code_changes]
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
    for seed, number in sorted(Counter(seed for seed, _ in variant.counted).items()):
        if number > 1:
            different = "with different data or partitions; all of them count"
            notes.append(f"{variant.name}, seed {seed}: {number} runs {different}")
    return notes


def _same_settings(variants: Sequence[Variant]) -> list[str]:
    """A sentence for variants that differ only in their code."""
    by_settings: dict[str, list[Variant]] = {}
    for variant in variants:
        by_settings.setdefault(repr(sorted(variant.runs[0].deciding.items(), key=str)), []).append(variant)
    notes = []
    for alike in by_settings.values():
        if len(alike) > 1 and (changed := _unequal_code([run for one in alike for run in one.runs])):
            called = " and ".join(one.name for one in alike)
            notes.append(f"{called} have the same settings, but different code ({', '.join(changed)})")
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


def _unpaired(runs: Sequence[RunRecord]) -> list[str]:
    """A sentence for each seed of which runs of one task have different data."""
    pairs: dict[tuple[int, str], set[tuple[int, str]]] = {}
    for run in runs:
        task = repr(sorted((key, value) for key, value in run.keys.items() if is_task(key) or key == "seeds.data"))
        pairs.setdefault((run.seed, task), set()).add(run.pair)
    return [
        f"seed {seed}: some runs have equal settings but different data or partitions, so they are not paired with "
        "each other"
        for seed in sorted({seed for (seed, _), of_task in pairs.items() if len(of_task) > 1})
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


def on_selection(tunings: Iterable[TuningCard], select: str, metric: str) -> list[str]:
    """Sentences on the accuracies that chose rounds and tuned values, and the one that is shown.

    select: what selects each run's round, one of `SELECT`. metric: the accuracy of differences and figures.
    """
    chose = list(dict.fromkeys(one.select for one in tunings))
    if select != "last":
        return [SELECTED_BY_VAL[select], *_other_selection(chose, select)]
    if metric == tuned_metric(chose):
        return [FOLLOWS_TUNING]
    kinds = [networks for networks in (OWN, CURRENT) if networks & {*chose}]
    if len(kinds) > 1:
        return [
            f"{' and '.join(chose)} chose the tuned values of different methods, so no accuracy suits all of them; "
            "tune all methods by the same accuracy (tune.select)"
        ]
    alike = [networks for networks in (OWN, CURRENT) if metric in networks]
    return [
        f"{other} chose the tuned values, but differences and figures show {metric}; to choose and show the accuracy "
        f"of the same networks, set tune.select: {'accuracy/val' if networks is OWN else 'accuracy/val_current'}, or "
        f"use --metric {'accuracy/all_current' if networks is OWN else 'accuracy/all'}"
        for networks in alike
        for other in chose
        if other in OWN | CURRENT and other not in networks
    ]


def _other_selection(chose: Iterable[str], select: str) -> list[str]:
    """A sentence for each other validation accuracy that chose the values of these runs."""
    return [
        f"{metric} chose the tuned values, but --select {select} chooses rounds by accuracy/{select}; "
        f"use --select {metric.removeprefix('accuracy/')} to choose both by the same accuracy"
        for metric in chose
        if metric.removeprefix("accuracy/") in SELECT and metric != f"accuracy/{select}"
    ]
