"""From a name in a scenario to the class it means: `fedgh` is the one Algorithm in algorithms/fedgh.py."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable

from raysim.core.algorithm import Algorithm, AnyAlgorithm
from raysim.core.errors import ScenarioError


def suggest(given: str, names: Iterable[str]) -> str:
    """The nearest name as `; did you mean 'x'?`, or nothing when none is near."""
    near = difflib.get_close_matches(given, list(names), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def algorithm_names() -> list[str]:
    """Every file in `algorithms/`, in alphabetical order."""
    package = importlib.import_module("algorithms")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def algorithm_class(name: str) -> type[AnyAlgorithm]:
    """The algorithm of a file. Raises `ScenarioError` when there is no such file or it does not hold exactly one."""
    names = algorithm_names()
    if name not in names:
        raise ScenarioError(
            f"algorithm.name: unknown algorithm {name!r}{suggest(name, names)} (there are: {', '.join(names)})"
        )
    module = importlib.import_module(f"algorithms.{name}")
    found = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Algorithm) and member.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise ScenarioError(f"algorithms/{name}.py: holds {len(found)} Algorithm classes; it must hold exactly one")
    return found[0]
