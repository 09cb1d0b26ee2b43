"""`raysim describe` of sweeps and of files: the keys of a sweep file and of `tune`, and the keys that a file gives."""

from __future__ import annotations

from collections.abc import Mapping

from raysim.scenario.bundled import scenario_file
from raysim.scenario.parse import flatten
from raysim.scenario.yaml_text import opening_comment, parse, read_text
from raysim.sweeps.definition import is_sweep
from raysim.sweeps.tune import Tune

SWEEP: Mapping[str, str] = {
    "base": "required: the path of a scenario file, relative to the sweep file's folder; or the name of a bundled "
    "scenario, such as quickstart; or the keys and values of a scenario",
    "name": "name of the folder below `output` (default: ./runs) and of the MLflow experiment; default: the name of "
    "the file",
    "seeds": "a list of seeds, or a range such as 1..5; default: the seed of `base`",
    "grid": "key -> list of values; every combination is a cell",
    "runs": "the variants to compare, as name -> list of overrides, such as {FedGH: [algorithm.name=fedgh, "
    "training.lr=0.1]}. For a variant with its own grid, write {set: OVERRIDES, grid: {KEY: VALUES}} instead of the "
    "list. To combine choices of several kinds, write KIND -> NAME -> list of overrides, such as {method: {FedGH: "
    "[...], FedProto: [...]}, rate: {slow: [...], fast: [...]}}: raysim runs every combination, here four variants",
    "set": "list of overrides for every cell",
    "baseline": "the method, or the name in `runs`, that all others are compared with",
    "targets": "target accuracies, greater than 0 and at most 1; the comparison shows the rounds, MiB and operations "
    "until each is reached. Default: the papers' targets for cifar10 and cifar100 with the partitions pathological and "
    "dirichlet; none for other data",
    "targets_on": "the clients whose mean test accuracy must reach a target. all (the default): all clients, each "
    "with its own network. all_current: all clients, each after it received the server's current message. "
    "participants: only the participants of a round",
    "tune": "the keys to tune by trials before the final runs, and how to tune them: see `raysim describe tune`",
    "published": "a paper's values to compare with: a mapping with the keys `file`, `rows` and `measures`, or a list "
    "of such mappings. `file` is a CSV file. `rows` selects rows of this file (column -> value). `measures` assigns a "
    "measure of raysim to a metric of the file (metric -> measure)",
}
"""Key of a sweep file -> meaning."""

TUNE: Mapping[str, str] = {key: " ".join((field.description or "").split()) for key, field in Tune.model_fields.items()}
"""Key of `tune` in a sweep file -> meaning."""

ABOUT: Mapping[str, str] = {
    "sweep": "A sweep file describes many runs; `raysim sweep FILE` runs each once. Overrides are written as for "
    "--set: training.lr=0.1. See an example with `raysim describe sweeps/digits`; copy the bundled files with "
    "`raysim init`.",
    "tune": "With `tune`, trials on other seeds first choose the values of some keys for each name in `runs`; then "
    "the final runs use the chosen values. See an example with `raysim describe sweeps/tuned`.",
}
KEYS: Mapping[str, Mapping[str, str]] = {"sweep": SWEEP, "tune": TUNE}


def about_file(name: str) -> tuple[str, list[tuple[str, str]], str]:
    """Return the opening comment of a scenario or sweep file, its keys with their values, and how to run it.

    The file is only read: no key is checked, and no custom code runs. Raises `ScenarioError`.
    """
    path = scenario_file(name)
    text = read_text(path)
    raw = parse(text, str(path))
    how = f"This is a scenario: run it with `raysim launch {name}`; show all keys with `raysim validate {name}`."
    if is_sweep(raw):
        how = f"This is a sweep: run it with `raysim sweep {name}`; `raysim describe sweep` explains its keys."
    return opening_comment(text), [(key, str(value)) for key, value in flatten(raw)], how
