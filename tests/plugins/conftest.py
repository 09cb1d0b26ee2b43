"""A user's folder with own code, in a process that has not imported any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.own import HELPED, NETS, SCENARIO, forget_own_code


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    forget_own_code()  # tests of other folders leave theirs
    yield
    forget_own_code()


@pytest.fixture
def folder(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, which is no part of the current one."""
    here = workplace / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    there = workplace / "there"
    there.mkdir()
    files = {"mine.py": HELPED, "my_helper.py": "SCALE = 1.0\n", "nets.py": NETS, "s.yaml": SCENARIO}
    for name, text in files.items():
        (there / name).write_text(text)
    return there
