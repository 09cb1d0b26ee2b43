"""docs/comparison.md and docs/tuning.md have every key of a sweep file, and name measures that exist."""

from __future__ import annotations

import re

from raysim.comparison.measures import ALL_MEASURES
from raysim.sweeps.definition import KEYS
from raysim.sweeps.tune import Tune
from tests.conftest import REPOSITORY


def page(name: str) -> str:
    return (REPOSITORY / "docs" / name).read_text(encoding="utf-8")


def test_the_page_has_every_key_of_a_sweep_file() -> None:
    assert {*re.findall(r"^\| `(\w+)` \|", page("comparison.md"), re.MULTILINE)} == KEYS.keys()


def test_the_page_names_measures_that_exist() -> None:
    (section,) = re.findall(r"^## Measures\n(.*?)^\*\*", page("comparison.md"), re.MULTILINE | re.DOTALL)
    named = {
        name for start in re.findall(r"^- (.*?): ", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", start)
    }
    assert {"last", "best_participants", "rounds_to_A"} <= named <= ALL_MEASURES.keys()


def test_the_page_has_every_key_of_tuning() -> None:
    assert {*re.findall(r"^\| `tune\.(\w+)` \|", page("tuning.md"), re.MULTILINE)} == Tune.model_fields.keys()
