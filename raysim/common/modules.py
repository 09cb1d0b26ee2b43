"""Python modules by name: what a file imports, what an algorithm's file may import, where the user's own files are."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import NamedTuple

LIBRARIES = ("numpy", "scipy", "torch")
"""What an algorithm's file may import besides `raysim.core` and the standard library."""

PACKAGE = "raysim_own"
"""The package of the modules that are made of the files that a scenario names."""


class Import(NamedTuple):
    """One module that a file imports."""

    module: str  # begins with dots where it is relative
    names: list[str]  # of `from module import names`
    line: int


def imports_of(tree: ast.AST) -> Iterator[Import]:
    """Every import, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, [], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import("." * node.level + (node.module or ""), [alias.name for alias in node.names], node.lineno)


def is_allowed(module: str) -> bool:
    """Whether an algorithm's file may import this module."""
    of_core = f"{module}.".startswith("raysim.core.")
    return of_core or module.partition(".")[0] in {*LIBRARIES, *sys.stdlib_module_names}


def plain_module(name: str) -> str:
    """The name of a module as its file has it: `mine` for `raysim_own.mine`."""
    return name.removeprefix(f"{PACKAGE}.")
