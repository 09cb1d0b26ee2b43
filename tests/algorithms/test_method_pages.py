"""docs/methods: one page per method, whose equations are marked where the code computes them."""

from __future__ import annotations

import csv
import importlib
import inspect
import io
import re
import tokenize
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from raysim.comparison.statistics import paired_difference
from raysim.plugins.registry import algorithm_names

REPOSITORY = Path(__file__).parents[2]
PAGES = REPOSITORY / "docs" / "methods"
HEADINGS = ["Idea", "Equations", "Equation to function", "Symbol to code", "Deviations", "Published values"]
EQUATION = re.compile(r"Eq\. (\d+|[A-Z])\b")


def page(method: str) -> str:
    return (PAGES / f"{method}.md").read_text(encoding="utf-8")


def section(method: str, heading: str) -> str:
    return page(method).split(f"\n## {heading}\n")[1].split("\n## ")[0]


def table(method: str, heading: str) -> list[list[str]]:
    """The cells of a section's table, without its two header lines."""
    lines = [line for line in section(method, heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def function(method: str, name: str) -> Any:
    found: Any = importlib.import_module(f"raysim.algorithms.{method}")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def comments(source: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)


def published(methods: set[str]) -> list[list[str]]:
    """Rows of a page's table of published values: one per table of a paper, setting, method and metric."""
    with (REPOSITORY / "scenarios" / "published_results.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] in methods]
    key = ("paper", "table", "setting", "method", "metric")
    groups = groupby(sorted(rows, key=lambda r: [r[n] for n in key]), key=lambda r: [r[n] for n in key])
    return [
        [*(name.replace("|", "\\|") for name in names), "; ".join(f"{r['dataset']}: {r['value']}" for r in values)]
        for names, values in groups
    ]


def test_every_method_has_a_page():
    assert sorted(path.stem for path in PAGES.glob("*.md")) == algorithm_names()


@pytest.mark.parametrize("method", algorithm_names())
def test_headings_are_the_agreed_ones(method: str):
    assert re.findall(r"^## (.*)$", page(method), re.MULTILINE) == HEADINGS


@pytest.mark.parametrize("method", algorithm_names())
def test_every_equation_is_marked_in_the_function_that_computes_it(method: str):
    rows = table(method, "Equation to function")
    assert rows
    for equation, _, name in rows:
        assert EQUATION.fullmatch(equation)
        source = inspect.getsource(function(method, name.strip("`")))
        assert re.search(rf"{re.escape(equation)}\b", comments(inspect.cleandoc("\n" + source))), (equation, name)


@pytest.mark.parametrize("method", algorithm_names())
def test_page_and_file_have_the_same_equations(method: str):
    file = (REPOSITORY / "algorithms" / f"{method}.py").read_text(encoding="utf-8")
    listed = {row[0] for row in table(method, "Equation to function")}
    shown = {f"Eq. {label}" for label in EQUATION.findall(section(method, "Equations"))}
    marked = {f"Eq. {label}" for label in EQUATION.findall(comments(file))}
    assert listed == shown == marked


@pytest.mark.parametrize("method", algorithm_names())
def test_published_values_are_those_of_the_collected_tables(method: str):
    rows = table(method, "Published values")
    methods = {row[3].replace("\\|", "|") for row in rows}
    assert rows == published(methods)


def sources(*folders: str) -> list[Path]:
    suffixes = {".py", ".md", ".yaml", ".toml"}
    found = (path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in suffixes)
    return [path for path in found if path != Path(__file__)]


def test_methods_and_their_pages_name_no_path_outside_the_repository():
    outside = re.compile(r"\.\./shared|/home/")
    for path in sources("algorithms", "docs/methods", "raysim/contract", "raysim/core", "tests/algorithms"):
        assert not outside.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("method", ["fedprox", "fedper", "fedrep", "ditto", "apfl", "fedgen"])
def test_differences_on_digits_follow_from_the_values_of_the_seeds(method: str) -> None:
    text = " ".join(section(method, "Published values").split())
    listed = re.findall(r"- (\w[\w-]*)(?: with `mu: 0\.1`)?: [\d.]+ %[^(]*\(([^)]*)\)", text)
    seeds = {}
    for name, values in listed:
        seeds[name] = dict(zip("123", map(float, re.findall(r"\d+\.\d\d", values)), strict=True))
    names = "FedProx|LG-FedAvg|FedAvg|FedPer|FedRep|Ditto|APFL|FedGen"
    shown = re.findall(rf"({names})(?: is)? (\d\.\d\d ± \d\.\d\d)", text)
    assert len(shown) == 2
    for name, words in shown:
        found = paired_difference(seeds[name], seeds["Standalone"])
        assert found and found.half_width and words == f"{abs(found.mean):.2f} ± {found.half_width:.2f}"
