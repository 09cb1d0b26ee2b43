"""The documents name what exists, and the repository speaks its field's language."""

from __future__ import annotations

import ast
import re

import pytest

from tests.structure import REPOSITORY, files, private_terms

DECISIONS = (REPOSITORY / "docs" / "decisions.md").read_text()
PARTS = ("Context", "Decision", "Rejected", "Price", "Guard")


def test_no_private_terms() -> None:
    found = [f"{path}:{line}: {word!r}; say: {say}" for path, line, word, say in private_terms()]
    assert not found, "\n".join(found)


def test_nothing_outside_the_repository_is_cited() -> None:
    outside = re.compile(r"\b(?:algorithms|design|field|style)\.md\b")
    for path in files(".py", ".md", ".yaml"):
        if path.name != "test_structure.py":
            assert not outside.findall((REPOSITORY / path).read_text()), path


def test_each_decision_has_its_parts() -> None:
    sections = re.split(r"^## ", DECISIONS, flags=re.MULTILINE)[1:]
    assert 1 <= len(sections) <= 15
    for number, section in enumerate(sections, 1):
        assert section.startswith(f"{number}. ")
        assert re.findall(r"^\*\*(\w+)\.\*\*", section, flags=re.MULTILINE) == list(PARTS), section.splitlines()[0]


@pytest.mark.parametrize("guard", re.findall(r"`(tests/[\w/.:]+)`", DECISIONS))
def test_each_guard_exists(guard: str) -> None:
    name, _, test = guard.partition("::")
    tree = ast.parse((REPOSITORY / name).read_text())
    assert not test or test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", ["docs/architecture.md", "raysim/README.md", "CONTRIBUTING.md"])
def test_named_files_exist(page: str) -> None:
    for name in re.findall(r"`((?:raysim|algorithms|tests|docs|scenarios)/[\w/.]*)`", (REPOSITORY / page).read_text()):
        assert (REPOSITORY / name).exists(), f"{page} names {name}"


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/decisions.md", "raysim/README.md"])
def test_files_inside_the_package_exist(page: str) -> None:
    """Named from the repository, the package or the engine, such as `ray/actors.py`; or at the beginning of a line."""
    found = re.findall(r"^(engine/[\w/.]+)|`(\w+/[\w/]*\.py)`", (REPOSITORY / page).read_text(), flags=re.MULTILINE)
    names = {first or second for first, second in found}
    assert names
    for name in names:
        places = (REPOSITORY / folder / name for folder in ("", "raysim", "raysim/engine"))
        assert any(place.exists() for place in places), f"{page} names {name}"


def test_every_package_has_a_docstring() -> None:
    for file in sorted((REPOSITORY / "raysim").glob("*/__init__.py")):
        assert ast.get_docstring(ast.parse(file.read_text())), f"{file.parent.name} has no docstring"
