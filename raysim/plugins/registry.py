"""The algorithm class for a name in a scenario.

`fedgh` is the only Algorithm in algorithms/fedgh.py, `./mine.py` the only one in a user's file, and installed packages
add names with the entry point `raysim.algorithms`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.common.text import few
from raysim.plugins.references import import_module, installed, named

if TYPE_CHECKING:
    from raysim.core.algorithm import AnyAlgorithm


def algorithm_names() -> list[str]:
    """Return the names of all files in `algorithms/` and all entry points, in alphabetical order."""
    package = importlib.import_module("raysim.algorithms")
    built_in = {module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")}
    return sorted({*built_in, *installed("algorithms")})


def algorithm_file(name: str) -> Path | None:
    """Return the file of an algorithm of raysim, without importing it; None for any other name."""
    if name.startswith("_") or not name.isidentifier():
        return None
    spec = find_spec(f"raysim.algorithms.{name}")
    return Path(spec.origin) if spec and spec.origin else None


def algorithm_class(name: str) -> type[AnyAlgorithm]:
    """Return the algorithm class for a name. Call `OwnCode.activate` first for a class in a user's file.

    Raises `ScenarioError` if the name is unknown, the file cannot be imported or does not contain exactly one complete
    algorithm (of that name), or the class has a mistake that makes a hook or a field ineffective.
    """
    if algorithm_file(name) is not None:
        place, attribute = f"algorithms/{name}.py", ""
        module = import_module(f"raysim.algorithms.{name}", place)
    elif (reference := named("algorithms", name)) is not None:
        place, attribute = reference.place, reference.attribute
        module = reference.load()
    else:
        stem = name.removeprefix("./")
        if stem.isidentifier() and os.path.isfile(f"{stem}.py"):  # noqa: PTH113  # False if the name is too long
            raise ScenarioError(f"algorithm.name: unknown algorithm {name!r}; did you mean ./{stem}.py?")
        names = algorithm_names()
        beside = f" or ./{name}.py for a file" if name.isidentifier() else ""
        raise ScenarioError(
            f"algorithm.name: unknown algorithm {name!r}{suggest(name, names)} (available: {', '.join(names)}{beside})"
        )
    return _only_algorithm(module, place, attribute)


def _only_algorithm(module: ModuleType, place: str, attribute: str) -> type[AnyAlgorithm]:
    # Imported here, since they import torch.
    from raysim.core.algorithm import Algorithm
    from raysim.plugins.class_check import class_mistake

    found = {name: one for name, one in inspect.getmembers(module, inspect.isclass) if issubclass(one, Algorithm)}
    own = {name: one for name, one in found.items() if one.__module__ == module.__name__}
    chosen = found if attribute else own
    classes = list(dict.fromkeys(one for name, one in chosen.items() if attribute in ("", name)))
    if len(classes) != 1:
        called = f" called {attribute}" if attribute else ""
        if classes:
            remedy = f"write {place}:Name to choose one"
        elif own:
            remedy = f"it contains {few(list(own))}"
        else:
            remedy = "add one"
        count = len(classes) or "no"
        raise ScenarioError(f"{place}: contains {count} subclasses of raysim.Algorithm{called}; {remedy}")
    (cls,) = classes
    mistake = class_mistake(cls)
    if missing := sorted(cls.__abstractmethods__):
        why = f": {mistake}" if mistake else ""
        raise ScenarioError(f"{place}: {cls.__name__} lacks {', '.join(missing)}{why}")
    if mistake:
        raise ScenarioError(f"{place}: {cls.__name__}: {mistake}")
    return cls
