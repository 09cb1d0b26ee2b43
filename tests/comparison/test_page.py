"""The site has every key of a sweep file, and docs/comparison.md names measures that exist."""

from __future__ import annotations

import re
import runpy

from raysim.comparison.measures import ALL_MEASURES
from raysim.sweeps.definition import SweepFile
from raysim.sweeps.tune import Tune
from tests.conftest import REPOSITORY


def test_the_site_has_every_key_of_a_sweep_file() -> None:
    made = runpy.run_path(str(REPOSITORY / "docs" / "scenario_keys.py"))["markdown"]()
    for name, keys in (("sweep", SweepFile.model_fields.keys()), ("tune", Tune.model_fields.keys())):
        section = made.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert {*re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)} == keys


def test_the_page_names_measures_that_exist() -> None:
    page = (REPOSITORY / "docs" / "comparison.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Measures\n(.*?)^\*\*", page, re.MULTILINE | re.DOTALL)
    named = {
        name for start in re.findall(r"^- (.*?): ", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", start)
    }
    assert {"last", "best_participants", "rounds_to_A"} <= named <= ALL_MEASURES.keys()
