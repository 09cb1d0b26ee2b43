"""docs/methods: one page per method, whose equations are marked where the code computes them."""

from __future__ import annotations

import csv
import importlib
import inspect
import io
import re
import tokenize
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from raysim.plugins.registry import algorithm_names

REPOSITORY = Path(__file__).parents[2]
PAGES = REPOSITORY / "docs" / "methods"
EQUATION = re.compile(r"Eq\. (\d+|[A-Z])\b")
SHOWN = re.compile(r"^- \*\*(Eq\. \w+)\*\* \(`([\w.]+)`\) ", re.MULTILINE)


def page(method: str) -> str:
    return (PAGES / f"{method}.md").read_text(encoding="utf-8")


def section(method: str, heading: str) -> str:
    return page(method).split(f"\n## {heading}\n")[1].split("\n## ")[0]


def function(method: str, name: str) -> Any:
    found: Any = importlib.import_module(f"raysim.algorithms.{method}")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def comments(source: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)


def test_every_method_has_a_page():
    assert sorted(path.stem for path in PAGES.glob("*.md")) == algorithm_names()


@pytest.mark.parametrize("method", algorithm_names())
def test_every_equation_is_marked_in_the_function_that_computes_it(method: str):
    for equation, name in SHOWN.findall(section(method, "Equations")):
        source = inspect.getsource(function(method, name))
        assert re.search(rf"{re.escape(equation)}\b", comments(inspect.cleandoc("\n" + source))), (equation, name)


@pytest.mark.parametrize("method", algorithm_names())
def test_page_and_file_have_the_same_equations(method: str):
    file = (REPOSITORY / "algorithms" / f"{method}.py").read_text(encoding="utf-8")
    shown = section(method, "Equations")
    marked = {f"Eq. {label}" for label in EQUATION.findall(comments(file))}
    assert {equation for equation, _ in SHOWN.findall(shown)} == {f"Eq. {x}" for x in EQUATION.findall(shown)} == marked


def test_published_values_are_on_the_page_of_one_method() -> None:
    with (REPOSITORY / "scenarios" / "published_results.csv").open(encoding="utf-8", newline="") as file:
        methods = {row["method"] for row in csv.DictReader(file)}
    patterns = [
        pattern
        for method in algorithm_names()
        for mark in re.findall(r"^<!-- published: (.+) -->$", page(method), re.MULTILINE)
        for pattern in mark.split(", ")
    ]
    found = [name for pattern in patterns for name in methods if fnmatchcase(name, pattern)]
    assert sorted(found) == sorted(name for name in methods if not name.startswith("CNN-"))
