"""Names of Python modules: the imports in a file, and the package for the user's files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

PACKAGE = "raysim_own"
"""Package in which the Python files that a scenario names are imported."""


class Import(NamedTuple):
    """A module that a file imports."""

    module: str  # begins with dots if the import is relative
    names: list[str]  # the names in `from module import names`


def imports_of(tree: ast.AST) -> Iterator[Import]:
    """Yield every import in a file, including those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import("." * node.level + (node.module or ""), [alias.name for alias in node.names])


def plain_module(name: str) -> str:
    """Return a module's name without the package for the user's files: `mine` for `raysim_own.mine`."""
    return name.removeprefix(f"{PACKAGE}.")
