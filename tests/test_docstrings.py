"""Every name of the Python reference has an example in its docstring, and the examples run as printed."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.structure import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "python.md").read_text(encoding="utf-8")


def of_name(name: str) -> Any:
    """The object with this dotted name: a package re-exports most of them."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def documented() -> dict[str, Any]:
    """Name -> object of every directive of the page, and of the public functions of its modules."""
    names = re.findall(r"^\.\. auto(?:function|class|decorator|exception):: (\S+)$", PAGE, re.MULTILINE)
    found = {name: of_name(name) for name in names}
    for name in re.findall(r"^\.\. automodule:: (\S+)$", PAGE, re.MULTILINE):
        module = importlib.import_module(name)
        for function, value in inspect.getmembers(module, inspect.isfunction):
            if value.__module__ == name and function[0] != "_":
                found[f"{name}.{function}"] = value
    return found


def test_the_page_names_all_that_raysim_exports() -> None:
    import raysim

    assert {f"raysim.{name}" for name in raysim.__all__} <= documented().keys()


SLOW = ("raysim.check_algorithm", "raysim.compare", "raysim.Comparison", "raysim.Run", "raysim.core.UpdateOf")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.large if name in SLOW else ()) for name in documented()]
)
def test_the_example_of_a_public_name(name: str, workplace: Path) -> None:
    tests = [test for test in doctest.DocTestFinder(recurse=False).find(documented()[name], name) if test.examples]
    assert tests, f"{name} has no example in its docstring"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    for test in tests:
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
