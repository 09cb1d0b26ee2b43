"""The documents name what exists, and no file or function grows beyond what is read at once."""

from __future__ import annotations

import ast
import re

import pytest

from tests.structure import REPOSITORY, files

LONGEST_FILE, LONGEST_FUNCTION = 600, 90
"""In lines. CONTRIBUTING.md asks for less; these limits only keep what is there from growing."""


def test_files_and_functions_stay_short() -> None:
    for path in files(".py"):
        if path.parts[0] in ("raysim", "algorithms"):
            text = (REPOSITORY / path).read_text(encoding="utf-8")
            assert text.count("\n") <= LONGEST_FILE, path
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, f"{path}: {node.name}"


def test_each_guard_of_a_decision_exists() -> None:
    for guard in re.findall(r"`(tests/[\w/.:]+)`", (REPOSITORY / "docs" / "decisions.md").read_text()):
        name, _, test = guard.partition("::")
        tree = ast.parse((REPOSITORY / name).read_text())
        assert not test or test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, guard


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/decisions.md", "raysim/README.md", "CONTRIBUTING.md"])
def test_named_files_exist(page: str) -> None:
    """Named from the repository, the package or the engine, such as `ray/actors.py`; or at the beginning of a line."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:raysim|algorithms|tests|docs|scenarios)/[\w/.]*)`", text):
        assert (REPOSITORY / name).exists(), f"{page} names {name}"
    for first, second in re.findall(r"^(engine/[\w/.]+)|`(\w+/[\w/]*\.py)`", text, flags=re.MULTILINE):
        places = (REPOSITORY / folder / (first or second) for folder in ("", "raysim", "raysim/engine"))
        assert any(place.exists() for place in places), f"{page} names {first or second}"
