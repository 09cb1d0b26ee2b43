"""docs/comparison.md says what the code does: every key of a sweep file, every measure with its meaning."""

from __future__ import annotations

import re

from raysim.comparison.measures import ALL_MEASURES
from raysim.sweeps.definition import KEYS
from raysim.sweeps.tune_settings import KEYS as TUNE_KEYS
from tests.conftest import REPOSITORY

ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def test_the_page_has_every_key_and_measure() -> None:
    rows = dict(ROW.findall((REPOSITORY / "docs" / "comparison.md").read_text()))
    assert {name: meaning for name, meaning in rows.items() if name not in KEYS} == ALL_MEASURES
    assert rows.keys() >= KEYS.keys()


def test_the_page_has_every_key_of_tuning() -> None:
    page = (REPOSITORY / "docs" / "comparison.md").read_text()
    assert {*re.findall(r"^\| `tune\.(\w+)` \|", page, re.MULTILINE)} == TUNE_KEYS.keys()
