"""`raysim describe` of sweeps and of files: the keys of a sweep file and of `tune`, and the keys that a file gives."""

from __future__ import annotations

from collections.abc import Mapping

from raysim.scenario.bundled import scenario_file
from raysim.scenario.parse import flatten
from raysim.scenario.yaml_text import opening_comment, parse, read_text
from raysim.sweeps.definition import is_sweep

SWEEP: Mapping[str, str] = {
    "base": "the path of a scenario file, relative to the folder of the sweep file, or the keys and values of a "
    "scenario; required",
    "name": "name of the folder below `runs/` and of the MLflow experiment; default: the name of the file",
    "seeds": "a list of seeds, or a range such as 1..5; default: the seed of the base",
    "grid": "key -> list of values; every combination is a cell",
    "runs": "name -> list of overrides, such as [algorithm.name=fedgh, training.lr=0.1], for variants that are not a "
    "grid. In place of a list, {set: OVERRIDES, grid: {KEY: VALUES}} gives a name a grid of its own. Several axes: "
    "axis -> name -> overrides, in every combination",
    "set": "list of overrides for every cell",
    "baseline": "the method, or the name in `runs`, that all others are compared with",
    "targets": "target accuracies: rounds, MiB and operations are counted until each is reached",
    "targets_on": "the clients whose mean test accuracy must reach a target: all (the default) or participants",
    "tune": "how the values of some keys are chosen before the runs of the result: see `raysim describe tune`",
    "published": "values of a paper to compare with: `file`, a CSV file; `rows`, column -> value; `measures`, "
    "metric -> measure. Or a list of such mappings",
}
"""Key of a sweep file -> meaning."""

TUNE: Mapping[str, str] = {
    "seeds": "the seeds of every trial, such as [101] or 101..102, none of which may be a seed of the result; required",
    "space": "key -> list of values, or a range: {log: [LOW, HIGH]}, {linear: [LOW, HIGH]} or {integer: [LOW, HIGH]}; "
    "these keys are tuned for every method",
    "methods": "name in `runs` -> further keys of this method, each with its values as in `space`",
    "search": "random (the default), grid, or tpe (Optuna)",
    "trials": "number of trials of each method; required, except for `grid`, whose default is every combination",
    "halving": "such as {rounds: [5, 20], keep: 1/3}; successive halving: after each of these rounds but the last, "
    "only the best `keep` of the trials continue; default: every trial has all rounds",
    "select": "metric that compares trials; default: accuracy/val",
    "seed": "seed of random draws and of `tpe`; default: 1",
}
"""Key of `tune` in a sweep file -> meaning."""

ABOUT: Mapping[str, str] = {
    "sweep": "A sweep file describes many runs; `raysim sweep FILE` runs each once. Overrides have the form of --set: "
    "training.lr=0.1. Example: `raysim describe sweeps/digits`; `raysim init` copies the bundled files.",
    "tune": "With `tune`, trials on other seeds choose the values of some keys for each name in `runs`, then "
    "the seeds of the result run with the chosen values. Example: `raysim describe sweeps/tuned`.",
}
KEYS: Mapping[str, Mapping[str, str]] = {"sweep": SWEEP, "tune": TUNE}


def about_file(name: str) -> tuple[str, list[tuple[str, str]], str]:
    """Return the opening comment of a scenario or sweep file, its keys with their values, and how to run it.

    The file is only read: no key is checked, and no custom code runs. Raises `ScenarioError`.
    """
    path = scenario_file(name)
    text = read_text(path)
    raw = parse(text, str(path))
    how = f"A scenario: `raysim launch {name}` runs it, `raysim validate {name}` shows all keys with their defaults."
    if is_sweep(raw):
        how = f"A sweep: `raysim sweep {name}` runs it, `raysim describe sweep` explains its keys."
    return opening_comment(text), [(key, str(value)) for key, value in flatten(raw)], how
