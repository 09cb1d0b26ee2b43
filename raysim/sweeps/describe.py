"""`raysim describe` of sweeps and of files: the keys of a sweep file and of `tune`, and the keys that a file gives."""

from __future__ import annotations

from collections.abc import Mapping

from raysim.scenario.bundled import scenario_file
from raysim.scenario.parse import flatten
from raysim.scenario.yaml_text import opening_comment, parse, read_text
from raysim.sweeps.definition import SweepFile, is_sweep
from raysim.sweeps.tune import Tune

KEYS: Mapping[str, Mapping[str, str]] = {
    name: {key: " ".join((field.description or "").split()) for key, field in section.model_fields.items()}
    for name, section in (("sweep", SweepFile), ("tune", Tune))
}
"""Section -> key -> meaning."""

ABOUT: Mapping[str, str] = {
    "sweep": "A sweep file describes many runs; `raysim sweep FILE` runs each once. Overrides are written as for "
    "--set: training.lr=0.1. See an example with `raysim describe sweeps/digits`; copy the bundled files with "
    "`raysim init`.",
    "tune": "With `tune`, trials on other seeds first choose the values of some keys for each name in `runs`; then "
    "the final runs use the chosen values. See an example with `raysim describe sweeps/tuned`.",
}


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
