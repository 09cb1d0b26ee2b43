"""The site has every key of a sweep file, and docs/comparison.md names measures that exist."""

from __future__ import annotations

import re

from raysim.study.measures import ALL_MEASURES
from tests.conftest import REPOSITORY


def test_the_page_names_measures_that_exist() -> None:
    page = (REPOSITORY / "docs" / "comparison.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Measures\n(.*?)^\*\*", page, re.MULTILINE | re.DOTALL)
    named = {
        name for start in re.findall(r"^- (.*?): ", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", start)
    }
    assert {"last", "best_participants", "rounds_to_A"} <= named <= ALL_MEASURES.keys()
